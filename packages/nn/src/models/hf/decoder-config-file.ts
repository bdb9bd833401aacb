// The config.json of a decoder, read and written.

import { FormatError } from '../../errors.js';
import {
  DECODER_FIELDS,
  type DecoderConfig,
  type DecoderOptions,
  type RopeScaling,
  resolveDecoderConfig,
} from '../decoder-config.js';
import { type DecoderFamily, FAMILIES, isForeign, ropeLayers } from '../decoder-families.js';
import { type ConfigFields, ownFields } from './config-fields.js';

/** Fields that would change the computation, each with the value under which they do not. */
const FIXED: ConfigFields = {
  hidden_act: 'silu',
  use_sliding_window: false,
  use_mrope: false,
  rope_interleaved: false,
  partial_rotary_factor: 1,
};

/**
 * The width of Qwen's sliding windows, and the layers that have them. Both mean nothing while
 * use_sliding_window is false.
 */
const WINDOWS = new Set(['sliding_window', 'max_window_layers']);

/** What SmolLM3's files may say in place of no_rope_layers. */
const INTERVAL = 'no_rope_layer_interval';

/**
 * The fields that describe the rotary positions. Version 5 of transformers writes rope_parameters
 * in place of rope_scaling and rope_theta.
 */
const ROTARY = ['rope_scaling', 'rope_parameters'] as const;
const FACTORS = [
  'factor',
  'low_freq_factor',
  'high_freq_factor',
  'original_max_position_embeddings',
] as const satisfies readonly (keyof RopeScaling)[];

/**
 * Reads a decoder's configuration from the fields of its config.json.
 * @throws {FormatError} naming a field that is unknown, or that asks for a computation that the
 * decoder does not do
 * @throws {NnConfigError} naming a field that is missing, or whose value cannot work
 */
export function readDecoderConfig(fields: ConfigFields): DecoderConfig {
  const family = fields.model_type as DecoderFamily;
  const { classes, hasIdleWindows } = FAMILIES[family];
  const isOwn = (name: string) => name !== 'rope_scaling' && !isForeign(family, name);
  const options = ownFields(fields, {
    architectures: [`${classes}ForCausalLM`],
    own: new Set(DECODER_FIELDS.filter(isOwn)),
    fixed: FIXED,
    isHarmless: (name, value) =>
      (ROTARY as readonly string[]).includes(name) || // read below
      (hasIdleWindows && WINDOWS.has(name)) ||
      (name === INTERVAL && !isForeign(family, 'no_rope_layers')) || // read below
      (name === 'layer_types' && isFull(value)),
  });
  const read = { ...intervals(fields), ...options, ...readRotary(fields) };
  return resolveDecoderConfig(read as unknown as DecoderOptions);
}

/** The fields of the config.json that describes a decoder. */
export function decoderConfigFields(config: DecoderConfig): ConfigFields {
  const { model_type: family, ...rest } = config;
  const { classes, hasIdleWindows } = FAMILIES[family];
  return {
    model_type: family,
    architectures: [`${classes}ForCausalLM`],
    hidden_act: FIXED.hidden_act,
    ...Object.fromEntries(Object.entries(rest).filter(([name]) => !isForeign(family, name))),
    ...(hasIdleWindows ? { use_sliding_window: false } : {}),
  };
}

/** The lists for each layer that a file says by the distance of the layers that differ. */
function intervals({ [INTERVAL]: interval, num_hidden_layers: count }: ConfigFields) {
  return typeof interval === 'number' && typeof count === 'number'
    ? { no_rope_layers: ropeLayers(count, interval) }
    : {};
}

function isFull(layerTypes: unknown): boolean {
  return Array.isArray(layerTypes) && layerTypes.every((type) => type === 'full_attention');
}

/** The base and the scaling of the rotary frequencies, under their older names. */
interface Rotary {
  readonly rope_theta?: unknown;
  readonly rope_scaling?: RopeScaling | null;
}

/**
 * What rope_theta and the fields of ROTARY say. A file may say a thing in several of them, and then
 * each says the same.
 */
function readRotary(fields: ConfigFields): Rotary {
  const given = ['rope_theta', ...ROTARY].filter((name) => (fields[name] ?? null) !== null);
  const said = given.map((name) =>
    name === 'rope_theta' ? { rope_theta: fields[name] } : readField(name, fields[name]),
  );
  const all: Record<string, unknown> = Object.assign({}, ...said);
  const isOne = said
    .flatMap((rotary) => Object.entries(rotary))
    .every(([name, value]) => JSON.stringify(value) === JSON.stringify(all[name]));
  if (!isOne) {
    const texts = given.map((name) => `${name} ${JSON.stringify(fields[name])}`);
    throw new FormatError(
      `config.json: expected ${given.join(', ')} to say the same, got ${texts.join(', ')}. Remove what the model was not trained with.`,
    );
  }
  return all;
}

function readField(field: string, given: unknown): Rotary {
  if (typeof given !== 'object' || given === null || Array.isArray(given)) {
    throw new FormatError(
      `config.json: expected ${field} to be an object or null, got ${JSON.stringify(given)}.`,
    );
  }
  const { type, rope_type: kind = type, rope_theta: base, ...factors } = given as ConfigFields;
  const theta = base === undefined ? {} : { rope_theta: base };
  if (type !== undefined && type !== kind) {
    throw new FormatError(
      `config.json: expected ${field}.type and ${field}.rope_type to be the same, got ${JSON.stringify(type)} and ${JSON.stringify(kind)}.`,
    );
  }
  if (kind !== 'default' && kind !== 'llama3') {
    throw new FormatError(
      `config.json: expected ${field}.rope_type to be 'default' or 'llama3', got ${JSON.stringify(kind)}. This decoder stretches positions in no other way.`,
    );
  }
  const known: readonly string[] = kind === 'llama3' ? FACTORS : [];
  const unknown = Object.keys(factors).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new FormatError(
      `config.json: expected no ${field}.${unknown} beside rope_type '${kind}', got ${JSON.stringify(factors[unknown])}.`,
    );
  }
  const sorted = known.filter((name) => name in factors).map((name) => [name, factors[name]]);
  const scaling = kind === 'llama3' ? { rope_type: kind, ...Object.fromEntries(sorted) } : null;
  return { ...theta, rope_scaling: scaling as RopeScaling | null };
}
