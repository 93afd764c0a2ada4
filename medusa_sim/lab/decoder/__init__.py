"""The ground truth: a Llama-family decoder with Medusa heads, tree verification and draft-model methods.

Read in this order.

- The model: `config`, `rotary`, `cache`, `attention` (what a query may see), `model`, `heads`.
- Decoding: `candidates` (the tree of one step), `distributions` (of tokens, and draws from them), `accept`
  and `rejection` (what is kept), `generate` (the loop), `medusa_drafter`, `ngram_drafter`, `model_drafter`.
- What a command asks for: `arguments`, `checkpoint`, `tokenizer`, `prompts`, `methods`, `trials`, `session`.
- Training: `training`, `checkpoint_folder`.
- The same results sooner: `fixed_shapes`, `cuda_graph`, `packed`.

Nothing here is imported unless a command needs it, because it loads torch.
"""
