"""What the book is built with: fences that run code, figures that the engine draws, links, formulas, diagrams, checks.

What makes text is a Markdown extension or a fence's formatter, so that MkDocs and Zensical build the same site. Reading
order:

- `places`, `runs`, `narrow`, `fences`, `extension`: how a page comes to be;
- `links`, `maths`, `diagram`, `strip`, `lab`, `bench`, `puzzles`, `plan`: its parts;
- `docstrings` and `drawings`: the engine's own words on the API pages; `generate`: those pages, and the navigation;
- `stills`: the pictures that notebooks are stored with;
- `tables`: what is made from code and data: `deviations`, `names`, `serving`, `coverage`, `drafts`,
  `options`, `kernels`, `kill_matrix`, `league`, `recorded`, `licences`, `second_home`, `spine`;
- `counting`: which lines of a file hold code;
- `kept`: what fences have computed, for the next build;
- `taught` and `found`: which chapter teaches which word, for the search; `cards`: a page's picture, to share it;
- `overview`: the lists of chapters and labs with which their parts begin;
- `whole` and `pdf`: all chapters on one page, and as a file to print;
- `homes`: whether the homes in the coverage index teach their ideas;
- `upstream`: vLLM's names and defaults, which `record_vllm` wrote down;
- `course`: what follows from `book/course.toml`, the address and the labs that are shown;
- `leaks`: that no solution is in the site;
- `described`, `slim` and `policy`: MkDocs' hooks, for pages that say what they are, are small, and run no foreign code.
"""
