// Search runs in a worker, which browsers refuse to pages from the file system. There, the worker's
// script runs in a hidden frame instead, with the functions that it expects of a worker.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      const send = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      // In a frame "parent" is another page: a worker's messages go by postMessage.
      inner.postMessage = send
      inner.importScripts = (...names) =>
        names.reduce((before, name) => before.then(() => load(inner, name)), Promise.resolve())
      load(inner, address).then(() => {
        this.ready = true
        this.waiting.splice(0).forEach(data => this.postMessage(data))
      })
    }
    postMessage(data) {
      if (!this.ready) return void this.waiting.push(data)
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() {
      this.frame.remove()
    }
  }

function load(inner, address) {
  return new Promise((done, failed) => {
    const script = inner.document.createElement("script")
    script.src = address
    script.onload = done
    script.onerror = failed
    inner.document.body.append(script)
  })
}
