"""What serving engines take: the answers of a run or a plan as settings of vLLM, SGLang, TensorRT-LLM and others."""
