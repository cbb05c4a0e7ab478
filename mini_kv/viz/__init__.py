"""Drawings of recorded calls, as text and as a figure. Needs no torch. Runs in a browser.

`language` has the words of the figure per language. `text` draws a state in plain characters, and `terminal` plays a
scenario. `story_json` writes a run as a story. `figure` makes HTML from it, with the script that draws it
(`kv_story.js`). `state` computes the states of a story, and `still` draws one of them as an SVG, for paper and for
pages without scripts.
"""
