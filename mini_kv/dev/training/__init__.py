"""The training of the checkpoints in `engine/tiny` and `engine/tiny_windows`: `python -m mini_kv.dev.training.train`.

In reading order: `prose` (the texts it learns from), `train_tokenizer` (a vocabulary from these texts), `train` (a
model's weights). All need torch.
"""
