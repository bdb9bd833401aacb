// The peak of cachedInfoNce, by dry runs: a larger batch adds its embeddings, and nothing of the
// model's activations.

import { Decoder } from '@shardweave/nn';
import { cachedInfoNce, EmbeddingModel } from '@shardweave/nn/embedding';
import { expect, it } from 'vitest';
import { makeDevice } from './support/support.js';

const WIDTH = 64;
const CHUNK = 256;
const DOCUMENT = Array.from({ length: 32 }, (_, i) => i);

async function peakOf(batch: number): Promise<number> {
  const device = makeDevice();
  const documents = new Array<readonly number[]>(batch).fill(DOCUMENT);
  const { peakInUseBytes } = await device.dryRun(async () => {
    const body = new Decoder(device, {
      model_type: 'qwen3',
      vocab_size: 1000,
      hidden_size: WIDTH,
      intermediate_size: 4 * WIDTH,
      num_hidden_layers: 1,
      num_attention_heads: 4,
      max_position_embeddings: 64,
      tie_word_embeddings: true,
    });
    const model = new EmbeddingModel(body, { pooling: 'mean' });
    await cachedInfoNce(model, { queries: documents, documents }, { chunkSize: CHUNK });
  });
  device.dispose();
  return peakInUseBytes;
}

it('a batch of 4,096 takes the memory of one of 256, its embeddings and their gradients aside', async () => {
  const [small, large] = [await peakOf(256), await peakOf(4096)];
  const embeddings = 4 * (4096 - 256) * WIDTH * 4; // two lists, each with its gradient, in f32
  expect(large - small).toBeLessThanOrEqual(embeddings);
  expect(large).toBeLessThan(1.1 * small);
});
