// Files of Gemma 3 as other programs write them: keys that ours lack, and those that ask for what
// the model here does not compute.

import { GgufModelError, modelGguf } from '@shardweave/gguf';
import { ggufConfigText, ggufTokenizerTexts, openGguf } from '@shardweave/gguf/read';
import { parseModelConfig } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { SMALL_MODELS } from './support/hub-models.ts';
import { randomModel } from './support/random-model.ts';
import { changedGguf, sourceOf } from './support/raw-gguf.ts';
import { bytesOf } from './support/written.ts';

const { config: FIELDS, pre } = SMALL_MODELS.gemma3;
const { texts, state, config } = await randomModel(FIELDS, pre);
const written = await bytesOf(modelGguf({ texts, state }, { type: 'f32', name: 'x' }));

type Key = readonly [key: string, value: unknown, type: string];

/** The file with other values of some of the model's keys, or without them. */
async function withKeys(...keys: readonly Key[]) {
  const bytes = await changedGguf(written, {
    metadata: (metadata) => {
      for (const [key, value, type] of keys) {
        if (value === undefined) {
          metadata.delete(`gemma3.${key}`);
        } else {
          metadata.set(`gemma3.${key}`, { type, value } as never);
        }
      }
    },
  });
  return openGguf(sourceOf(bytes));
}
const configWith = async (...keys: readonly Key[]) =>
  parseModelConfig(await ggufConfigText(await withKeys(...keys)));

describe('a file of Gemma 3', () => {
  it('may say its pattern and the theta of its windows, and caps that are none', async () => {
    const same = await configWith(
      ['attention.sliding_window_pattern', 6, 'u32'],
      ['rope.freq_base_swa', 10_000, 'f32'],
      ['final_logit_softcapping', 0, 'f32'],
    );
    const { layer_types, sliding_window, rope_scaling, query_pre_attn_scalar } = config as never;
    expect(same).toMatchObject({
      ...{ layer_types, sliding_window, rope_scaling, query_pre_attn_scalar },
      rope_local_base_freq: 10_000,
    });
    const others = await configWith(
      ['attention.sliding_window_pattern', 3, 'u32'],
      ['rope.freq_base_swa', 500, 'f32'],
      ['rope.scaling.type', undefined, ''],
      ['rope.scaling.factor', undefined, ''],
    );
    expect(others).toMatchObject({ rope_local_base_freq: 500, rope_scaling: null });
    expect('layer_types' in others && others.layer_types?.indexOf('full_attention')).toBe(2);
  });

  it.each<[string, Key, RegExp]>([
    [
      'without a window',
      ['attention.sliding_window', undefined, ''],
      /sliding_window: .* got none/,
    ],
    ['with yarn', ['rope.scaling.type', 'yarn', 'string'], /expected 'linear', got yarn/],
    ['with caps', ['final_logit_softcapping', 30, 'f32'], /final_logit_softcapping: expected no/],
  ])('is refused %s', async (_, key, message) => {
    const error = await configWith(key).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(GgufModelError);
    expect((error as Error).message).toMatch(message);
  });

  it('has tokens of several spaces as spaces, and ends a text where a turn ends', async () => {
    const gguf = await withKeys();
    const tokens = gguf.metadata.get('tokenizer.ggml.tokens')!.value as readonly string[];
    expect(tokens.slice(10, 13)).toEqual(['  ', '   ', '    ']);
    const read = ggufTokenizerTexts(gguf);
    const { added_tokens: added } = JSON.parse(read.get('tokenizer.json')!);
    expect(added[10]).toMatchObject({ content: '  ', special: false, normalized: false });
    expect(JSON.parse(read.get('generation_config.json')!)).toEqual({ eos_token_id: [1, 5] });
    expect(JSON.parse(read.get('tokenizer_config.json')!)).toMatchObject({
      ...{ bos_token: '<bos>', eos_token: '<eos>', add_bos_token: true },
      chat_template: expect.stringContaining('<start_of_turn>'),
    });
  });

  it('has no row for tokens behind the table of the model', async () => {
    const json = JSON.parse(texts.get('tokenizer.json')!);
    json.added_tokens.push({ ...json.added_tokens[4], id: 640, content: '<image_soft_token>' });
    const more = new Map([...texts, ['tokenizer.json', JSON.stringify(json)]]);
    const again = await bytesOf(modelGguf({ texts: more, state }, { type: 'f32', name: 'x' }));
    expect(Buffer.compare(again, written)).toBe(0);
  });
});
