// The kinds of values that flags take: as text on the command line, as numbers and lists in a
// config file. One schema checks both, and the published JSON schema is made from it.

import { pow64 } from '@shardweave/dtypes/float64';
import { MAX_THREADS } from '@shardweave/tensor-core';
import { z } from 'zod';
import type { DeviceChoice } from '../device-choice.js';
import { nearest } from '../nearest.js';
import { ownValue } from './foreign-names.js';

/** The values that a flag accepts. */
export interface FlagKind<T> {
  /** Checks a value as a config file has it; its description completes "expected ...". */
  readonly schema: z.ZodType<T>;
  /**
   * Turns what was typed into the config file's form. Text that has no such form stays as it is,
   * for the schema to refuse.
   */
  readonly read: (typed: unknown) => unknown;
  /** The largest number that is exact; said where a larger one was typed. */
  readonly most?: number;
  /** What was meant by a value that is refused. */
  readonly meant?: (typed: string) => string | undefined;
  /**
   * Whether all words up to the next flag are the value, with commas between them: a shell makes
   * them of a pattern that is not quoted.
   */
  readonly isList?: boolean;
  /** Whether the flag may be typed several times; all the texts are then read at once. */
  readonly isRepeated?: boolean;
}

type Checked<T> = { readonly value: T; readonly problem: undefined } | { readonly problem: string };

/** Checks a value. A problem is a sentence with what was expected, and with `got`. */
export function checkValue<T>(kind: FlagKind<T>, value: unknown, got: string): Checked<T> {
  const { schema, most, meant } = kind;
  const checked = schema.safeParse(value);
  if (checked.success) {
    return { value: checked.data, problem: undefined };
  }
  const limit = most !== undefined && Number(value) > most ? `, at most ${most}` : '';
  const own = meant?.(String(value));
  const hint = own === undefined ? '' : ` Did you mean ${own}?`;
  return { problem: `expected ${schema.description}${limit}, got ${got}.${hint}` };
}

const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

function asNumber(typed: unknown): unknown {
  return DECIMAL.test(String(typed)) ? Number(typed) : typed;
}

/** What is a number where it is typed as one. */
const numeric = <T>(schema: z.ZodType<T>, what: string): FlagKind<T> => ({
  schema: schema.describe(what),
  read: asNumber,
});

/** What a config file has as it is typed. */
const textual = <T>(schema: z.ZodType<T>, what: string): FlagKind<T> => ({
  schema: schema.describe(what),
  read: (typed) => typed,
});

export const whole = (least: number): FlagKind<number> => ({
  ...numeric(z.int().min(least), `a whole number of at least ${least}`),
  most: Number.MAX_SAFE_INTEGER,
});

const wholeUpTo = (most: number) =>
  numeric(z.int().min(1).max(most), `a whole number from 1 to ${most}`);

export const threads = wholeUpTo(MAX_THREADS);
/** No job has more ranks than that, and lists of so many are still made at once. */
export const ranks = wholeUpTo(65_536);

const BYTES = /^(\d+\.?\d*|\.\d+) ?(?:([kmgt])(i?))?b$/i;

/** A number of bytes, whose units are decimal without an i: 1 MB = 1e6 bytes, 1 MiB = 2^20. */
export const bytes: FlagKind<number> = {
  ...numeric(
    z
      .union([z.int(), z.string().regex(BYTES).transform(bytesOf)])
      .refine((count) => Number.isSafeInteger(count) && count >= 1),
    'a number of bytes of at least 1, such as 64MB, 8GiB or 64000000',
  ),
  most: Number.MAX_SAFE_INTEGER,
};

function bytesOf(text: string): number {
  const [, count, prefix = ' ', binary = ''] = BYTES.exec(text)!;
  const power = ' kmgt'.indexOf(prefix.toLowerCase());
  return Math.floor(Number(count) * pow64(binary === '' ? 1000 : 1024, power));
}

const BITS = /^(\d+\.?\d*|\.\d+) ?([kmg])bit(?:\/s|ps)?$/i;

/** A rate in bits a second, with decimal units: 1gbit is 1e9. */
export const bitRate: FlagKind<number> = {
  ...numeric(
    z
      .union([z.number().gt(0), z.string().regex(BITS).transform(bitsOf)])
      .refine((bits) => Number.isFinite(bits) && bits > 0),
    'bits a second above 0, such as 1gbit, 2.5gbit or 100mbit',
  ),
  most: Number.MAX_SAFE_INTEGER,
};

function bitsOf(text: string): number {
  const [, count, prefix] = BITS.exec(text)!;
  return Number(count) * pow64(1000, ' kmg'.indexOf(prefix!.toLowerCase()));
}

export const nonNegative = numeric(z.number().min(0), 'a number of at least 0');
export const positive = numeric(z.number().gt(0), 'a number above 0');
export const probability = numeric(z.number().min(0).lt(1), 'a number from 0 to below 1');
export const smoothing = numeric(z.number().min(0).lt(0.5), 'a number from 0 to below 0.5');
export const part = numeric(z.number().gt(0).lt(1), 'a number above 0 and below 1');
export const share = numeric(z.number().gt(0).max(1), 'a number above 0, at most 1');
export const shareOrNone = numeric(z.number().min(0).max(1), 'a number from 0 to 1');

/** A number of things, or the part of them that it is. */
export const countOrPart = numeric(
  z.union([z.int().min(1), z.number().gt(0).lt(1)]),
  'a whole number of at least 1, or a part below 1',
);

/** One of these values, typed in any case: llama.cpp writes Q4_K_M. */
export const oneOf = <const T extends readonly string[]>(values: T): FlagKind<T[number]> => ({
  ...textual(z.enum(values), `one of ${values.join(', ')}`),
  read: (typed) => {
    const text = String(typed).toLowerCase();
    return values.find((value) => value.toLowerCase() === text) ?? typed;
  },
  meant: (typed) => ownValue(typed, values) ?? nearest(typed, values),
});

/** One or more of these values, each once, such as f32,q8. */
export const someOf = <const T extends readonly string[]>(
  values: T,
): FlagKind<readonly T[number][]> => ({
  schema: z
    .array(z.enum(values))
    .min(1)
    .transform((given) => [...new Set(given)])
    .describe(`one or more of ${values.join(', ')}, with commas between them`),
  read: (typed) => String(typed).split(','),
  meant: (typed) => {
    const own = typed.split(',').map((name) => ownValue(name, values) ?? nearest(name, values));
    return own.includes(undefined) ? undefined : own.join(',');
  },
});

/**
 * A path. Config files name paths as the command line does: relative to where the command is
 * called.
 */
export const file = textual(z.string().min(1), 'a path');
/** Paths beside the flags. */
export const files = textual<readonly string[]>(z.array(file.schema).min(1), 'paths');
/** A path that may be given several times. */
export const paths: FlagKind<readonly string[]> = { ...files, isRepeated: true };
/**
 * Data by paths and names, which stand behind the flag one by one or with commas between them; see
 * data/data-parts.ts.
 */
export const data: FlagKind<string> = {
  ...textual(
    z
      .union([file.schema, z.array(file.schema).min(1)])
      .transform((given) => (typeof given === 'string' ? given : given.join(','))),
    'paths, or names of data sets',
  ),
  isList: true,
};

/** A path that may be left out, which is true. */
export const fileOrNone = textual(z.union([z.literal(true), file.schema]), 'a path, or none');

export const text = textual(z.string(), 'a text');
export const filledText = textual(z.string().min(1), 'a text');
export const texts: FlagKind<readonly string[]> = {
  ...textual(z.array(z.string().min(1)), 'a text'),
  isRepeated: true,
};

export const onOff = textual(z.boolean(), 'true or false');

const DEVICES = ['auto', 'webgpu', 'cpu'] as const;

/** The device of one rank. */
export const device: FlagKind<DeviceChoice> = {
  ...textual(
    z.union([z.enum(DEVICES), z.templateLiteral(['webgpu:', z.string().min(1)])]),
    'auto, webgpu, cpu, or an adapter such as webgpu:4090 or webgpu:1',
  ),
  meant: ownDevices,
};

export const devices: FlagKind<readonly DeviceChoice[]> = {
  schema: z
    .union([device.schema, z.array(device.schema).min(1)])
    .transform((value) => (typeof value === 'string' ? [value] : value))
    .describe(`${device.schema.description}, or a list of them by rank such as cpu,webgpu`),
  read: (typed) => String(typed).split(','),
  meant: ownDevices,
};

/** Devices by rank as they are called here, such as `webgpu:1` for cuda:1. */
function ownDevices(typed: string): string | undefined {
  const own = typed.split(',').map((choice) => {
    const [kind = '', ...index] = choice.split(':');
    const name = ownValue(kind, DEVICES);
    return name && [name, ...index].join(':');
  });
  return own.includes(undefined) ? undefined : own.join(',');
}

export const targets: FlagKind<'all-linear' | readonly string[]> = {
  schema: z
    .union([z.literal('all-linear'), z.array(z.string().min(1)).min(1)])
    .describe('all-linear, or names of layers such as q_proj,v_proj'),
  read: (typed) =>
    typed === 'all-linear'
      ? typed
      : String(typed)
          .split(',')
          .map((name) => name.trim()),
};

export const counts: FlagKind<readonly number[]> = {
  schema: z.array(z.int().min(1)).min(1).describe('whole numbers such as 384,128,64'),
  read: (typed) =>
    String(typed)
      .split(',')
      .map((count) => (/^\s*\d+\s*$/.test(count) ? Number(count) : count)),
};

/** Steps, the last one with them. */
export interface StepRange {
  readonly first: number;
  readonly last: number;
}

const STEPS = /^(\d+)(?:\.\.(\d+))?$/;

export const stepRange = textual(
  z
    .string()
    .regex(STEPS)
    .transform((text): StepRange => {
      const [, first, last = first] = STEPS.exec(text)!;
      return { first: Number(first), last: Number(last) };
    })
    .refine(({ first, last }) => first >= 1 && last >= first),
  'steps such as 100..110, or a single one',
);

const SECONDS = { s: 1, m: 60, h: 3600 } as const;

/** A duration in seconds. */
export const duration = textual(
  z
    .string()
    .regex(/^(?!0*\.?0*[smh])(\d+\.?\d*|\.\d+)[smh]$/)
    .transform((time) => Number(time.slice(0, -1)) * SECONDS[time.at(-1) as keyof typeof SECONDS]),
  'a time such as 90s, 30m or 2h',
);

/** The interval between saves, in one of the two units. */
export interface SaveEvery {
  readonly steps?: number;
  readonly minutes?: number;
}

export const saveEvery = numeric(
  z
    .union([z.int().min(1), z.string().regex(/^(?!0*\.?0*m)(\d+\.?\d*|\.\d+)m$/)])
    .transform(
      (value): SaveEvery =>
        typeof value === 'number' ? { steps: value } : { minutes: Number(value.slice(0, -1)) },
    ),
  'a number of steps such as 100, or of minutes such as 5m',
);

/** A port whose value may be left out, which is true. */
export const port: FlagKind<true | number> = {
  schema: z
    .union([z.literal(true), z.int().min(0).max(65535)])
    .describe('a port up to 65535, or none'),
  read: (typed) => (/^\d+$/.test(String(typed)) ? Number(typed) : typed),
};
