"""Our runs as Hugging Face models: a folder that AutoModelForCausalLM and AutoTokenizer load."""
