"""The build of the book: fences that run code, figures from the engine, links, formulas, diagrams, checks.

All text is made by a Markdown extension or a fence's formatter, so that no plugin of MkDocs is needed.
Reading order:

- `places`, `runs`, `source_text`, `fences`, `extension`: the build of a page;
- `elements`: the fences for labs, puzzles, games and tools; `lab_layout`: the page around a lab's editor;
- `generate`: the pages of modules and labs, and the navigation; `stills`: the pictures stored in notebooks;
- `curriculum`: what each chapter and lab teaches, and the lists of them;
- `tables`: tables from code and data: `recorded`, `kill_matrix`, `spine`, and those of the next two lines;
- `upstream`: vLLM's names and defaults beside ours, which are recorded by `mini_kv.dev.recorders`;
- `upgrade`: what another version of vLLM does differently;
- `outputs`: results of fences, kept for the next build and stored for one without PyTorch;
- `course`: the address and the labs, from `book/course.toml`;
- `leaks`: a check that the site has no solution;
- MkDocs' hooks, beside the course's: `cards` for a page's picture, to share it, `search_terms` for the search,
  `publish` for all chapters on one page and as a PDF, `page_hooks` for descriptions, small pages, and a policy for
  scripts.
"""
