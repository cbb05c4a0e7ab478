"""How it looks: drawings folded from traces. No torch, runs in a browser.

`text` draws a state in plain characters, `terminal` plays a scenario.
"""
