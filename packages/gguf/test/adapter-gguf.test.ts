// Files of adapters: what they say of themselves, and which adapters are refused. What llama.cpp
// computes with them is in llama-cpp.test.ts.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { adapterGguf, GgufModelError, GgufUsageError } from '@shardweave/gguf';
import { FormatError, type HostTensor, type ModelConfig, parseModelConfig } from '@shardweave/nn';
import { afterAll, expect, it } from 'vitest';
import { bareModel } from './support/hub-models.ts';
import { bytesOf, readGguf } from './support/written.ts';

const folder = mkdtempSync(join(tmpdir(), 'gguf-adapter-'));
afterAll(() => rmSync(folder, { recursive: true }));

const bare = bareModel(512, 4);
const base = parseModelConfig(bare.texts.get('config.json')!);
const OPTIONS = { type: 'f32', name: 'mine' } as const;

function factors(layer: string, [out, rank, width]: readonly [number, number, number]) {
  const tensor = (...shape: readonly [number, number]): HostTensor => ({
    dtype: 'f32',
    shape,
    data: new Uint8Array(Float32Array.from({ length: shape[0] * shape[1] }, (_, i) => i).buffer),
  });
  return new Map([
    [`base_model.model.${layer}.lora_A.weight`, tensor(rank, width)],
    [`base_model.model.${layer}.lora_B.weight`, tensor(out, rank)],
  ]);
}

const V_PROJ = 'model.layers.0.self_attn.v_proj';

it('says what it is, in the words of other readers', async () => {
  const path = join(folder, 'mine.gguf');
  const state = factors(V_PROJ, [4, 3, 4]);
  writeFileSync(path, await bytesOf(adapterGguf({ base, alpha: 7, state }, OPTIONS)));
  const { metadata, tensorInfos } = await readGguf(path);
  expect(metadata).toMatchObject({
    'general.type': 'adapter',
    'general.architecture': 'llama',
    'general.name': 'mine',
    'adapter.type': 'lora',
    'adapter.lora.alpha': 7,
  });
  const read = tensorInfos.map(({ name, shape }) => [name, shape.map(Number)]);
  // The innermost dimension is the first one.
  expect(read).toEqual([
    ['blk.0.attn_v.weight.lora_a', [4, 3]],
    ['blk.0.attn_v.weight.lora_b', [3, 4]],
  ]);
});

it('moves the rows of lora_B as those of its layer, for llama alone', async () => {
  const rowsOf = async (family: 'llama' | 'qwen2', layer: string) => {
    const state = factors(`model.layers.0.self_attn.${layer}`, [4, 1, 4]);
    const config = { ...base, model_type: family } as ModelConfig;
    const bytes = await bytesOf(adapterGguf({ base: config, alpha: 1, state }, OPTIONS));
    // lora_B [4, 1] is the last tensor, padded to 32 bytes.
    return [...new Float32Array(Uint8Array.from(bytes.subarray(-32, -16)).buffer)];
  };
  expect(await rowsOf('llama', 'q_proj')).toEqual([0, 2, 1, 3]);
  expect(await rowsOf('llama', 'k_proj')).toEqual([0, 2, 1, 3]);
  expect(await rowsOf('llama', 'v_proj')).toEqual([0, 1, 2, 3]);
  expect(await rowsOf('qwen2', 'q_proj')).toEqual([0, 1, 2, 3]);
});

it.each<[string, Parameters<typeof factors>, Partial<ModelConfig>, RegExp]>([
  ['a tied head', ['lm_head', [512, 2, 4]], {}, /'lm_head', which is the token table/],
  ['the token table', ['model.embed_tokens', [512, 2, 4]], {}, /no place for them/],
  ['an unknown layer', ['model.layers.7.mlp.up_proj', [1, 2, 4]], {}, /layers\.7\.mlp\.up_proj'/],
  ['a norm', ['model.norm', [4, 2, 1]], {}, /some of 'model\.norm'/],
  ['another width', [V_PROJ, [4, 2, 3]], {}, /lora_A\.weight' \[2, 4\], got \[2, 3\]/],
  ['another output', [V_PROJ, [5, 2, 4]], {}, /lora_B\.weight' \[4, 2\], got \[5, 2\]/],
  [
    'a base that llama.cpp computes otherwise',
    [V_PROJ, [4, 2, 4]],
    { model_type: 'qwen3', attention_bias: true } as Partial<ModelConfig>,
    /attention_bias/,
  ],
])('refuses adapters of %s', (_, [layer, sizes], config, message) => {
  const state = factors(layer, sizes);
  const run = () =>
    adapterGguf({ base: { ...base, ...config } as ModelConfig, alpha: 1, state }, OPTIONS);
  expect(run).toThrow(GgufModelError);
  expect(run).toThrow(message);
});

it('takes a head of its own', () => {
  const own = { ...base, tie_word_embeddings: false } as ModelConfig;
  const state = factors('lm_head', [512, 2, 4]);
  expect(adapterGguf({ base: own, alpha: 1, state }, OPTIONS).byteLength).toBeGreaterThan(4096);
});

it('refuses factors without a partner, no adapters, and values out of range', () => {
  const state = factors(V_PROJ, [4, 2, 4]);
  const [first] = state;
  const make = (adapter: object, options: object = {}) =>
    adapterGguf({ base, alpha: 1, state, ...adapter }, { ...OPTIONS, ...options });
  expect(() => make({ state: new Map([first!]) })).toThrow(FormatError);
  expect(() => make({ state: new Map() })).toThrow(GgufUsageError);
  for (const alpha of [0, -1, Number.NaN, Number.POSITIVE_INFINITY]) {
    expect(() => make({ alpha })).toThrow(`expected alpha to be a number above 0, got ${alpha}`);
  }
  expect(() => make({}, { type: 'q4_0' })).toThrow(/expected type to be f32, f16, bf16, q8_0/);
});
