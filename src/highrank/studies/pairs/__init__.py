"""`highrank finetune --task translation`: encoder–decoders on pairs of texts, head beside head."""
