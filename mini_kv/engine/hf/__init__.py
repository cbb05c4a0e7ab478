"""Models and tokenizers of Hugging Face: read from their files and run with transformers.

In reading order: `hf_checkpoint` (a folder with files of a model), `hf_model` (its layers, with this engine's
attention), `hf_tokenizer` (text to token ids and back), `tokenizer_patterns` (how a text is split).
"""
