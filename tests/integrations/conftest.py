"""The tests make their models themselves: nothing is to be looked for in the network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
