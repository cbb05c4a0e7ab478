"""The build of the book: fences that run code, figures from the engine, links, formulas, diagrams, checks.

All text is made by a Markdown extension or a fence's formatter, so that no plugin of MkDocs is needed.
Reading order:

- `places`, `runs`, `narrow`, `fences`, `extension`: the build of a page;
- `links`, `maths`, `strip`, `lab_layout`: its parts; `elements`: labs, puzzles, games and tools to use in a page;
- `docstrings` and `drawings`: the docstrings on the API pages; `generate`: those pages, and the navigation;
- `stills`: the pictures stored in notebooks;
- `tables`: tables from code and data: `recorded`, `upstream`, `kill_matrix`, `spine`;
- `counting`: the lines of a file with code;
- `kept`: results of fences, kept for the next build; `outputs`: those that are stored for a build without PyTorch;
- `taught` and `found`: the words that each chapter teaches, for the search; `cards`: a page's picture, to share it;
- `overview`: the lists of chapters and labs at the beginning of their parts;
- `whole` and `pdf`: all chapters on one page, and as a file to print;
- `upstream`: vLLM's names and defaults beside ours; `record_vllm` wrote vLLM's down;
- `upgrade`: what another version of vLLM does differently;
- `course`: the address and the labs, from `book/course.toml`;
- `leaks`: a check that the site has no solution;
- `described`, `slim` and `policy`: MkDocs' hooks, for descriptions, small pages, and a policy for scripts.
"""
