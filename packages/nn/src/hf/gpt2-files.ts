// GPT-2 in the Hugging Face layout: the fields of config.json, and model.safetensors as bytes, whole or by
// ranges. Reading and writing the files themselves is the caller's, for this runs in browsers too.

import { FormatError } from '../errors.js';
import type { Gpt2 } from '../gpt2.js';
import { type Gpt2Config, resolveGpt2Config } from '../gpt2-config.js';
import type { HostTensor, LazyTensor } from '../host-tensor.js';
import { loadStateDict, stateDict } from '../state-dict.js';
import type { ConfigFields } from './decoder-config-file.js';
import {
  type ByteSource,
  openSafetensors,
  readSafetensors,
  safetensorsPieces,
  writeSafetensors,
} from './safetensors.js';

const PREFIX = 'transformer.';
const TABLE = 'transformer.wte.weight';
const HEAD = 'lm_head.weight';
const FILE_OPTIONS = { metadata: { format: 'pt' } } as const;
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
 * The model's options from the fields of config.json; those it does not know are passed over.
 * @throws {FormatError} for those of a model that it does not compute
 * @throws {NnConfigError} for values that cannot work
 */
export function readGpt2Config(fields: ConfigFields): Gpt2Config {
  for (const [name, value] of Object.entries(FIXED)) {
    if (name in fields && fields[name] !== value) {
      throw new FormatError(
        `config.json: expected ${name} to be ${JSON.stringify(value)}, got ${JSON.stringify(fields[name])}. Other models are not supported.`,
      );
    }
  }
  return resolveGpt2Config(pickOptions(fields));
}

/** The fields of config.json. */
export function gpt2ConfigFields(config: Gpt2Config): ConfigFields {
  return {
    architectures: ['GPT2LMHeadModel'],
    ...FIXED,
    ...pickOptions(config as unknown as ConfigFields),
    n_ctx: config.n_positions, // older readers ask for it
  };
}

/**
 * The weights as model.safetensors: names with `transformer.`, Conv1D weights [in, out], the tied
 * table once. Waits for the device.
 */
export async function writeGpt2(model: Gpt2): Promise<Uint8Array<ArrayBuffer>> {
  return gpt2File(await stateDict(model));
}

/**
 * model.safetensors from a state dict, for instance one gathered from shards, as one array.
 * @throws {FormatError} where no array is that large: gpt2Pieces has no such limit
 */
export function gpt2File(state: ReadonlyMap<string, HostTensor>): Uint8Array<ArrayBuffer> {
  return writeSafetensors(state, FILE_OPTIONS);
}

/** As gpt2File, a piece after the other; lazy tensors are read when their turn comes. */
export function gpt2Pieces(
  state: ReadonlyMap<string, HostTensor | LazyTensor>,
): AsyncGenerator<Uint8Array, void, undefined> {
  return safetensorsPieces(state, FILE_OPTIONS);
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
  const { state, head } = ownNames(readSafetensors(file).tensors);
  const table = state.get(TABLE);
  if (head !== undefined && table !== undefined) {
    requireTied(head, table);
  }
  return state;
}

/**
 * As gpt2State, of a file of any size: reads its header, and each tensor when it is asked for. A head
 * of its own is compared with the table, which reads both.
 * @throws {FormatError} as loadGpt2
 */
export async function openGpt2(source: ByteSource): Promise<Map<string, LazyTensor>> {
  const { state, head } = ownNames((await openSafetensors(source)).tensors);
  const table = state.get(TABLE);
  if (head !== undefined && table !== undefined) {
    requireTied({ ...head, data: await head.read() }, { ...table, data: await table.read() });
  }
  return state;
}

interface OwnNames<T> {
  readonly state: Map<string, T>;
  readonly head: T | undefined;
}

function ownNames<T>(tensors: ReadonlyMap<string, T>): OwnNames<T> {
  const state = new Map<string, T>();
  for (const [given, tensor] of tensors) {
    const name = given.startsWith(PREFIX) ? given : PREFIX + given;
    if (given === HEAD || MASKS.test(name)) {
      continue;
    }
    if (state.has(name)) {
      throw new FormatError(`gpt2: expected '${name}' once, got it twice.`);
    }
    state.set(name, tensor);
  }
  return { state, head: tensors.get(HEAD) };
}

function requireTied(head: HostTensor, table: HostTensor): void {
  if (isSame(head, table)) {
    return;
  }
  throw new FormatError(
    `gpt2: expected '${HEAD}' to be the token table ('${TABLE}'), but they differ. Untied heads are not supported.`,
  );
}

function pickOptions(fields: ConfigFields): Partial<Gpt2Config> {
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
