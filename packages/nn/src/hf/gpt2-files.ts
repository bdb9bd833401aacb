// GPT-2 in the Hugging Face layout: config.json and model.safetensors, as texts and bytes. Reading
// and writing the files themselves is the caller's, for this runs in browsers too.

import { FormatError } from '../errors.js';
import type { Gpt2 } from '../gpt2.js';
import { type Gpt2Config, resolveGpt2Config } from '../gpt2-config.js';
import type { HostTensor } from '../host-tensor.js';
import { loadStateDict, stateDict } from '../state-dict.js';
import { readSafetensors, writeSafetensors } from './safetensors.js';

const PREFIX = 'transformer.';
const TABLE = 'transformer.wte.weight';
const HEAD = 'lm_head.weight';
/** Causal masks, which older files hold as state. */
const MASKS = /^transformer\.h\.\d+\.attn\.(bias|masked_bias)$/;

/** Fields of config.json that change the computation, with the values this model computes. */
const FIXED = {
  model_type: 'gpt2',
  tie_word_embeddings: true,
  scale_attn_weights: true,
  scale_attn_by_inverse_layer_idx: false,
  reorder_and_upcast_attn: false,
  add_cross_attention: false,
} as const;

/**
 * The model's options from the text of config.json; fields it does not know are passed over.
 * @throws {FormatError} for text that is no config of a GPT-2, or of one this model does not compute
 * @throws {NnConfigError} for values that cannot work
 */
export function parseGpt2Config(text: string): Gpt2Config {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new FormatError('config.json: expected JSON.', { cause: error });
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw new FormatError('config.json: expected an object.');
  }
  const fields = parsed as Record<string, unknown>;
  for (const [name, value] of Object.entries(FIXED)) {
    if (name in fields && fields[name] !== value) {
      throw new FormatError(
        `config.json: expected ${name} to be ${JSON.stringify(value)}, got ${JSON.stringify(fields[name])}. Other models are not supported.`,
      );
    }
  }
  return resolveGpt2Config(pickOptions(fields));
}

/** The text of config.json. */
export function gpt2ConfigText(config: Gpt2Config): string {
  const fields = {
    architectures: ['GPT2LMHeadModel'],
    ...FIXED,
    ...pickOptions(config as unknown as Record<string, unknown>),
    n_ctx: config.n_positions, // older readers ask for it
    torch_dtype: 'float32',
  };
  return `${JSON.stringify(fields, undefined, 2)}\n`;
}

/**
 * The weights as model.safetensors: names with `transformer.`, Conv1D weights [in, out], the tied
 * table once. Waits for the device.
 */
export async function writeGpt2(model: Gpt2): Promise<Uint8Array<ArrayBuffer>> {
  return gpt2File(await stateDict(model));
}

/** model.safetensors from a state dict, for instance one gathered from shards. */
export function gpt2File(state: ReadonlyMap<string, HostTensor>): Uint8Array<ArrayBuffer> {
  return writeSafetensors(state, { metadata: { format: 'pt' } });
}

/**
 * Loads model.safetensors into a plain model; names with and without `transformer.` are known,
 * masks are passed over, 16-bit values are widened.
 * @throws {FormatError} for a malformed file or a head of its own
 * @throws {StateDictError} where names or shapes differ from the model's
 */
export function loadGpt2(model: Gpt2, file: Uint8Array): void {
  loadStateDict(model, gpt2State(file));
}

/** The tensors of a model.safetensors under the model's own names. */
export function gpt2State(file: Uint8Array): Map<string, HostTensor> {
  const state = new Map<string, HostTensor>();
  let head: HostTensor | undefined;
  for (const [given, tensor] of readSafetensors(file).tensors) {
    if (given === HEAD) {
      head = tensor;
      continue;
    }
    const name = given.startsWith(PREFIX) ? given : PREFIX + given;
    if (MASKS.test(name)) continue;
    if (state.has(name)) throw new FormatError(`gpt2: expected '${name}' once, got it twice.`);
    state.set(name, tensor);
  }
  const table = state.get(TABLE);
  if (head !== undefined && table !== undefined && !isSame(head, table)) {
    throw new FormatError(
      `gpt2: expected '${HEAD}' to be the token table ('${TABLE}'), but they differ. Untied heads are not supported.`,
    );
  }
  return state;
}

function pickOptions(fields: Record<string, unknown>): Partial<Gpt2Config> {
  const names = [
    'vocab_size',
    'n_positions',
    'n_embd',
    'n_layer',
    'n_head',
    'n_inner',
    'layer_norm_epsilon',
    'embd_pdrop',
    'attn_pdrop',
    'resid_pdrop',
    'activation_function',
    'initializer_range',
  ] as const satisfies readonly (keyof Gpt2Config)[];
  return Object.fromEntries(
    names.filter((name) => name in fields).map((name) => [name, fields[name]]),
  ) as Partial<Gpt2Config>;
}

function isSame(a: HostTensor, b: HostTensor): boolean {
  return (
    a.dtype === b.dtype &&
    a.data.byteLength === b.data.byteLength &&
    a.data.every((byte, i) => byte === b.data[i])
  );
}
