import type { ModelConfig } from '@shardweave/nn';

/** The number of a model's blocks, which lie between its first and its last layer. */
export function numBlocks(config: ModelConfig): number {
  return config.model_type === 'gpt2' ? config.n_layer : config.num_hidden_layers;
}
