// The config.json of a decoder, read and written.

import { FormatError } from '../../errors.js';
import {
  DECODER_FIELDS,
  type DecoderConfig,
  type DecoderOptions,
  type RopeScaling,
  resolveDecoderConfig,
} from '../decoder-config.js';
import { type DecoderFamily, FAMILIES, isForeign, type LayerFields } from '../decoder-families.js';
import { type ConfigFields, ownFields } from './config-fields.js';

/** Fields that would change the computation, each with the value under which they do not. */
const FIXED: ConfigFields = {
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

/** How generation in transformers holds keys and values, which Gemma's files say. */
const CACHE = 'cache_implementation';

/**
 * The fields that describe the rotary positions. Version 5 of transformers writes rope_parameters
 * in place of rope_scaling and rope_theta.
 */
const ROTARY = ['rope_scaling', 'rope_parameters'] as const;
/** The bases that stand by themselves in the files of older versions. */
const BASES = ['rope_theta', 'rope_local_base_freq'] as const;
/** The fields beside rope_type, by its value. */
const FACTORS: Readonly<Record<string, readonly string[]>> = {
  default: [],
  linear: ['factor'],
  llama3: ['factor', 'low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings'],
};

/**
 * Reads a decoder's configuration from the fields of its config.json.
 * @throws {FormatError} naming a field that is unknown, or that asks for a computation that the
 * decoder does not do
 * @throws {NnConfigError} naming a field that is missing, or whose value cannot work
 */
export function readDecoderConfig(fields: ConfigFields): DecoderConfig {
  const family = fields.model_type as DecoderFamily;
  const { classes, activation, pattern, hasIdleWindows } = FAMILIES[family];
  const isOwn = (name: string) => name !== 'rope_scaling' && !isForeign(family, name);
  const options = ownFields(fields, {
    architectures: [`${classes}ForCausalLM`],
    own: new Set(DECODER_FIELDS.filter(isOwn)),
    fixed: { ...FIXED, ...activation },
    isHarmless: (name, value) =>
      name === CACHE ||
      (ROTARY as readonly string[]).includes(name) || // read below
      pattern?.intervalFields.includes(name) === true || // read below
      (hasIdleWindows && WINDOWS.has(name)) ||
      (name === 'layer_types' && isFull(value)),
  });
  const read = { ...patternOf(fields, family), ...options, ...readRotary(fields, family) };
  return resolveDecoderConfig(read as unknown as DecoderOptions);
}

/** The fields of the config.json that describes a decoder. */
export function decoderConfigFields(config: DecoderConfig): ConfigFields {
  const { model_type: family, ...rest } = config;
  const { classes, activation, hasIdleWindows } = FAMILIES[family];
  return {
    model_type: family,
    architectures: [`${classes}ForCausalLM`],
    ...activation,
    ...Object.fromEntries(Object.entries(rest).filter(([name]) => !isForeign(family, name))),
    ...(hasIdleWindows ? { use_sliding_window: false } : {}),
  };
}

/** The fields for each layer that a file says by the distance of the layers that differ. */
function patternOf(fields: ConfigFields, family: DecoderFamily): LayerFields {
  const { pattern } = FAMILIES[family];
  const { num_hidden_layers: count } = fields;
  const interval = pattern?.intervalFields
    .map((name) => fields[name])
    .find((value) => typeof value === 'number');
  return pattern !== undefined && interval !== undefined && typeof count === 'number'
    ? pattern.of(count, interval)
    : {};
}

function isFull(layerTypes: unknown): boolean {
  return Array.isArray(layerTypes) && layerTypes.every((type) => type === 'full_attention');
}

/** The bases and the scaling of the rotary frequencies, under their older names. */
interface Rotary {
  readonly rope_theta?: unknown;
  readonly rope_local_base_freq?: unknown;
  readonly rope_scaling?: RopeScaling | null;
}

/**
 * What the fields of BASES and ROTARY say. A file may say a thing in several of them, and then each
 * says the same.
 */
function readRotary(fields: ConfigFields, family: DecoderFamily): Rotary {
  const bases = BASES.filter((name) => !isForeign(family, name));
  const given = [...bases, ...ROTARY].filter((name) => (fields[name] ?? null) !== null);
  const said = given.flatMap((name) =>
    bases.some((base) => base === name)
      ? [{ [name]: fields[name] }]
      : readField(name, fields[name], family),
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

/**
 * What a field of ROTARY says. Where layers have frequencies of two kinds, version 5 of
 * transformers writes one object for each: { full_attention: { ... }, sliding_attention: { ... } }.
 */
function readField(field: string, given: unknown, family: DecoderFamily): Rotary[] {
  const kinds = (given ?? {}) as ConfigFields;
  if (isForeign(family, 'layer_types') || !('full_attention' in kinds)) {
    return [readOne(field, given, FAMILIES[family].ropeScaling)];
  }
  const { full_attention: full, sliding_attention: sliding, ...others } = kinds;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) {
    throw new FormatError(`config.json: expected no ${field}.${unknown} beside full_attention.`);
  }
  const local = readOne(`${field}.sliding_attention`, sliding, 'default');
  return [
    readOne(`${field}.full_attention`, full, FAMILIES[family].ropeScaling),
    local.rope_theta === undefined ? {} : { rope_local_base_freq: local.rope_theta },
  ];
}

function readOne(field: string, given: unknown, stretching: string): Rotary {
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
  if (kind !== 'default' && kind !== stretching) {
    const kinds = [...new Set(['default', stretching])].map((name) => `'${name}'`).join(' or ');
    throw new FormatError(
      `config.json: expected ${field}.rope_type to be ${kinds}, got ${JSON.stringify(kind)}. This decoder stretches positions in no other way.`,
    );
  }
  const known = FACTORS[kind]!;
  const unknown = Object.keys(factors).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new FormatError(
      `config.json: expected no ${field}.${unknown} beside rope_type '${kind}', got ${JSON.stringify(factors[unknown])}.`,
    );
  }
  const sorted = known.filter((name) => name in factors).map((name) => [name, factors[name]]);
  const scaling = kind === 'default' ? null : { rope_type: kind, ...Object.fromEntries(sorted) };
  return { ...theta, rope_scaling: scaling as RopeScaling | null };
}
