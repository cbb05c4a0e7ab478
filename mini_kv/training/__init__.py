"""How the checkpoint in `engine/tiny` was made: `python -m mini_kv.training.train`. Needs torch.

In reading order: `prose` (the texts it learns from), `train_tokenizer` (a vocabulary from these texts), `train` (a
model's weights).
"""
