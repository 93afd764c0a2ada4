"""The ground truth: a Llama-family decoder with Medusa heads, tree verification and draft-model methods.

Read in this order: `config`, `parts`, `cache`, `model`, `heads`, `accept`, `generate`, `draft`.
Nothing here is imported unless a command needs it, because it loads torch.
"""
