// The kinds of values that flags of `train` take: as text on the command line, as numbers and lists
// in a config file. One schema checks both, and the published JSON schema is made from it.

import { z } from 'zod';
import type { DeviceChoice } from '../device-choice.js';

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
}

/** What completes "expected ..." where `value` is refused. */
export function expectedBy({ schema, most }: FlagKind<unknown>, value: unknown): string {
  const isBeyond = most !== undefined && Number(value) > most;
  return `${schema.description}${isBeyond ? `, at most ${most}` : ''}`;
}

const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

function asNumber(typed: unknown): unknown {
  return DECIMAL.test(String(typed)) ? Number(typed) : typed;
}

export const whole = (least: number): FlagKind<number> => ({
  schema: z.int().min(least).describe(`a whole number of at least ${least}`),
  read: asNumber,
  most: Number.MAX_SAFE_INTEGER,
});

const BYTES = /^(\d+\.?\d*|\.\d+) ?(?:([kmgt])(i?))?b$/i;

/** A number of bytes, whose units are decimal without an i: 1 MB = 1e6 bytes, 1 MiB = 2^20. */
export const bytes: FlagKind<number> = {
  schema: z
    .union([z.int(), z.string().regex(BYTES).transform(bytesOf)])
    .refine((count) => Number.isSafeInteger(count) && count >= 1)
    .describe('a number of bytes of at least 1, such as 64MB, 8GiB or 64000000'),
  read: asNumber,
  most: Number.MAX_SAFE_INTEGER,
};

function bytesOf(text: string): number {
  const [, count, prefix = ' ', binary = ''] = BYTES.exec(text)!;
  const power = ' kmgt'.indexOf(prefix.toLowerCase());
  return Math.floor(Number(count) * (binary === '' ? 1000 : 1024) ** power);
}

const real = (schema: z.ZodNumber, what: string): FlagKind<number> => ({
  schema: schema.describe(what),
  read: asNumber,
});

export const nonNegative = real(z.number().min(0), 'a number of at least 0');
export const positive = real(z.number().gt(0), 'a number above 0');
export const probability = real(z.number().min(0).lt(1), 'a number from 0 to below 1');
export const part = real(z.number().gt(0).lt(1), 'a number above 0 and below 1');

export const share = real(z.number().gt(0).max(1), 'a number above 0, at most 1');
export const shareOrNone = real(z.number().min(0).max(1), 'a number from 0 to 1');

const asTyped = (typed: unknown) => typed;

export const oneOf = <const T extends readonly [string, ...string[]]>(
  values: T,
): FlagKind<T[number]> => ({
  schema: z.enum(values).describe(`one of ${values.join(', ')}`),
  read: asTyped,
});

/**
 * A path. Config files name paths as the command line does: relative to where the command is
 * called.
 */
export const file: FlagKind<string> = {
  schema: z.string().min(1).describe('a path'),
  read: asTyped,
};

export const flag: FlagKind<boolean> = {
  schema: z.boolean().describe('true or false'),
  read: asTyped,
};

/** The device of one rank. */
export const device: FlagKind<DeviceChoice> = {
  schema: z
    .union([z.enum(['auto', 'webgpu', 'cpu']), z.templateLiteral(['webgpu:', z.string().min(1)])])
    .describe('auto, webgpu, cpu, or an adapter such as webgpu:4090 or webgpu:1'),
  read: asTyped,
};

export const devices: FlagKind<readonly DeviceChoice[]> = {
  schema: z
    .union([device.schema, z.array(device.schema).min(1)])
    .transform((value) => (typeof value === 'string' ? [value] : value))
    .describe(`${device.schema.description}, or a list of them by rank such as cpu,webgpu`),
  read: (typed) => String(typed).split(','),
};

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

/** A number of things, or the part of them that it is. */
export const countOrPart: FlagKind<number> = {
  schema: z
    .union([z.int().min(1), z.number().gt(0).lt(1)])
    .describe('a whole number of at least 1, or a part below 1'),
  read: asNumber,
};

const SECONDS = { s: 1, m: 60, h: 3600 } as const;

/** A duration in seconds. */
export const duration: FlagKind<number> = {
  schema: z
    .string()
    .regex(/^(?!0*\.?0*[smh])(\d+\.?\d*|\.\d+)[smh]$/)
    .transform((text) => Number(text.slice(0, -1)) * SECONDS[text.at(-1) as keyof typeof SECONDS])
    .describe('a time such as 90s, 30m or 2h'),
  read: asTyped,
};

/** The interval between saves, in one of the two units. */
export interface SaveEvery {
  readonly steps?: number;
  readonly minutes?: number;
}

export const saveEvery: FlagKind<SaveEvery> = {
  schema: z
    .union([z.int().min(1), z.string().regex(/^(?!0*\.?0*m)(\d+\.?\d*|\.\d+)m$/)])
    .transform(
      (value): SaveEvery =>
        typeof value === 'number' ? { steps: value } : { minutes: Number(value.slice(0, -1)) },
    )
    .describe('a number of steps such as 100, or of minutes such as 5m'),
  read: asNumber,
};

/** A port whose value may be left out, which is true. */
export const port: FlagKind<true | number> = {
  schema: z
    .union([z.literal(true), z.int().min(0).max(65535)])
    .describe('a port up to 65535, or none'),
  read: (typed) => (/^\d+$/.test(String(typed)) ? Number(typed) : typed),
};
