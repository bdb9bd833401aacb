// Files that llama.cpp itself has quantized, of every type of block: what is read computes what
// llama.cpp computes from the same file.

import { writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { modelGguf } from '@shardweave/gguf';
import { openGguf, readGgufModel } from '@shardweave/gguf/read';
import { loadStateDict, makeModel } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { llamaQuantize, noGgml } from '../../../tooling/test-kit/ggml.ts';
import { llamaLogits, openLlama } from './support/llama-cpp.ts';
import { randomModel } from './support/random-model.ts';
import { bytesOf } from './support/written.ts';

const CONFIG = {
  model_type: 'llama',
  ...{ vocab_size: 512, hidden_size: 256, intermediate_size: 512, num_hidden_layers: 1 },
  ...{ num_attention_heads: 8, num_key_value_heads: 2, max_position_embeddings: 64 },
};
const TOKENS = [5, 100, 33, 400, 7, 8, 9, 200];
/**
 * llama.cpp also rounds activations to 8 bits. Its logits are up to 5 here, and were 0.2 off at
 * most, for 8-bit blocks as for those of 4.
 */
const OFF = 0.4;

const folder = newFolder();
const llama = await openLlama();
const backend = await createCpuBackend({ threads: 1 });
afterAll(async () => {
  await llama.dispose();
  await backend.dispose();
});

/** Logits of the model that is read from a file, and the types of its matrices. */
async function ourLogits(path: string) {
  const file = await open(path);
  const read = async (into: Uint8Array, { offset }: { readonly offset: number }) =>
    void (await file.read(into, 0, into.byteLength, offset));
  const byteLength = (await file.stat()).size;
  const { config, tensors } = await readGgufModel(await openGguf({ byteLength, read }));
  const device = new Device(backend);
  const model = makeModel(device, config, { deferInit: true });
  await loadStateDict(model, new Map([...tensors].map(([name, { values }]) => [name, values])));
  await file.close();
  model.eval();
  const ids = device.tensor(Int32Array.from(TOKENS), [1, TOKENS.length]);
  const logits = await (await device.noGrad(() => model.call(ids))).toArray();
  device.dispose();
  const matrices = [...tensors.values()].filter(({ shape }) => shape.length === 2);
  return { logits, types: new Set(matrices.map(({ type }) => type)) };
}

const suffix = noGgml === undefined ? '' : ` (${noGgml})`;

describe.skipIf(noGgml !== undefined)(`llama_model_quantize${suffix}`, async () => {
  const { texts, state } = await randomModel(CONFIG, 'llama-bpe');
  const from = join(folder, 'f32.gguf');
  writeFileSync(from, await bytesOf(modelGguf({ texts, state }, { type: 'f32', name: 'x' })));

  it.each([
    ['Q4_K_M', 15, ['q4_K', 'q6_K']],
    ['Q5_K_M', 17, ['q5_K', 'q6_K']],
    ['Q4_0', 2, ['q4_0', 'q6_K']],
    ['Q4_1', 3, ['q4_1', 'q6_K']],
    ['Q5_0', 8, ['q5_0', 'q6_K']],
    ['Q5_1', 9, ['q5_1', 'q6_K']],
    ['Q8_0', 7, ['q8_0']],
  ])('a file in %s computes the same', async (name, fileType, types) => {
    const to = join(folder, `${name}.gguf`);
    llamaQuantize(from, { to, fileType });
    const ours = await ourLogits(to);
    expect([...ours.types].sort()).toEqual(types);
    const theirs = (await llamaLogits(llama, { path: to, tokens: TOKENS })).flatMap((row) => [
      ...row,
    ]);
    const off = theirs.map((value, i) => Math.abs(value - ours.logits[i]!));
    expect(Math.max(...off)).toBeLessThan(OFF);
    expect(Math.max(...theirs)).toBeGreaterThan(8 * OFF);
  });
});
