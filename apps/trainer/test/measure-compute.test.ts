// What is said of the work of a run.

import { resolveDecoderConfig } from '@shardweave/nn';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { describe, expect, it } from 'vitest';
import { resolveConfig } from '../src/config/resolve-config.js';
import { flopsPerToken, measureCompute } from '../src/rank/measure-compute.js';
import type { PreparedRun } from '../src/run-config.js';
import { languageConfig } from '../src/task/text-config.js';
import { parseFlags } from './support/parse-flags.js';

const textOf = (config: PreparedRun) => languageConfig(config.modelConfig);
const runOf = async (line: string) =>
  (await resolveConfig(parseFlags(line.split(' '), () => {}))) as PreparedRun;

describe('the operations of a token', () => {
  it('are six for each weight in products, four for frozen ones, and those of attention', async () => {
    const modelConfig = textOf(await runOf('--model gpt2 --tokenizer gpt2'));
    const attention = 12 * 12 * 768 * 1024;
    const weights = 124_439_808 - 1024 * 768; // without the positions; the tokens are the head
    expect(flopsPerToken(modelConfig, 1024, false)).toBe(6 * weights + attention);
    expect(flopsPerToken(modelConfig, 1024, true)).toBe(4 * weights + attention);
  });

  it('count a head beside its table of tokens once', () => {
    const of = (tie_word_embeddings: boolean) => {
      const config = resolveDecoderConfig({
        ...{ model_type: 'llama', hidden_size: 8, intermediate_size: 16, vocab_size: 32 },
        ...{ num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2 },
        ...{ max_position_embeddings: 16, tie_word_embeddings },
      });
      return flopsPerToken(config, 4, false);
    };
    // Four matrices of attention, three of the block's other half, three norms and the head.
    const weights = 4 * 64 + 3 * 128 + 3 * 8 + 32 * 8;
    expect([of(true), of(false)]).toEqual(Array(2).fill(6 * weights + 12 * 8 * 4));
  });

  it('have a most that is measured, of all ranks, where somebody watches', async () => {
    const backend = await createCpuBackend({ threads: 1 });
    const config = await runOf('--device cpu --ranks 2');
    expect(await measureCompute(config, backend)).toBeUndefined();
    const told = await measureCompute({ ...config, out: 'run' }, backend);
    await backend.dispose();
    expect(told!.flopsPerToken).toBe(flopsPerToken(textOf(config), config.seq, false));
    // A core makes a billion operations a second at least, and no thousand times as many.
    expect(told!.peakFlops! / 2e9).toBeGreaterThan(1);
    expect(told!.peakFlops! / 2e9).toBeLessThan(1000);
  });
});
