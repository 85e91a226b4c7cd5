"""`highrank finetune`: a pretrained model, upgraded and trained on, beside itself as a softmax."""
