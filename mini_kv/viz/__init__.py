"""Drawings of recorded calls, as text and as a figure. No torch, runs in a browser.

`language` has the words of the figure per language. `text` draws a state in plain characters, `terminal` plays a
scenario; `story_json` writes a run as a story, and `figure` makes HTML from it, with the one script that draws it
(`kv_story.js`). `state` folds a story's steps, and `still` draws one of them as an SVG, for paper and for pages without
scripts.
"""
