// The pages to play with have the colours of the site when they are in a frame of it. From the file system
// a frame may not look at the page around it, so it asks, and is told when they change.
const tellFrames = () => {
  const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light"
  for (const frame of document.querySelectorAll("iframe[src*='play/']"))
    frame.contentWindow.postMessage({ theme }, "*")
}
new MutationObserver(tellFrames).observe(document.body, { attributeFilter: ["data-md-color-scheme"] })
addEventListener("message", ({ data }) => data === "theme?" && tellFrames())
tellFrames()
