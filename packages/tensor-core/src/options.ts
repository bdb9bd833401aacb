// Checks options as plain JavaScript gives them: an unknown name or a wrong type is named where it is
// given, and not where it first hurts.

import { OptionError } from './errors.js';

/** What an option may be; `expected` completes "expected seed to be ...". */
export interface OptionRule {
  readonly expected: string;
  holds(value: unknown): boolean;
}

/** A rule for each option, so that none can be forgotten. Every option may be left out. */
export type OptionRules<Options> = { readonly [Name in keyof Options]-?: OptionRule };

/** @throws {OptionError} for what is no object, an unknown name, and a value that breaks its rule */
export function checkOptions<Options>(
  owner: string,
  options: unknown,
  rules: OptionRules<Options>,
): void {
  const known: Readonly<Record<string, OptionRule>> = rules;
  checkNames(owner, options, Object.keys(known));
  for (const [name, value] of Object.entries(options as object)) {
    const rule = known[name]!;
    if (value === undefined || rule.holds(value)) {
      continue;
    }
    throw new OptionError(
      `${owner}: expected ${name} to be ${rule.expected}, got ${shown(value)}.`,
    );
  }
}

/** @throws {OptionError} for what is no object, and an unknown name */
export function checkNames(owner: string, options: unknown, names: readonly string[]): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new OptionError(
      `${owner}: expected an object of options (${names.join(', ')}), got ${shown(options)}.`,
    );
  }
  for (const name in options) {
    if (!names.includes(name)) {
      throw new OptionError(`${owner}: expected options among ${names.join(', ')}, got '${name}'.`);
    }
  }
}

/** A value, as messages name what came. */
export function shown(value: unknown): string {
  if (typeof value === 'string') {
    return JSON.stringify(value);
  }
  if (typeof value === 'function') {
    return `the function ${value.name || 'without a name'}`;
  }
  if (typeof value !== 'object' || value === null) {
    return String(value);
  }
  if (Array.isArray(value)) {
    return `[${value.map(shown).join(', ')}]`;
  }
  const { name } = value.constructor ?? Object;
  return name === 'Object' ? 'a plain object' : `an object of ${name}`;
}

export const FLAG: OptionRule = {
  expected: 'true or false',
  holds: (value) => typeof value === 'boolean',
};

export function whole(least: number): OptionRule {
  return {
    expected: `a whole number of at least ${least}`,
    holds: (value) => Number.isSafeInteger(value) && (value as number) >= least,
  };
}

export const SEED: OptionRule = { expected: 'a safe integer', holds: Number.isSafeInteger };

export function oneOf(...values: readonly string[]): OptionRule {
  return {
    expected: values.map((value) => `'${value}'`).join(' or '),
    holds: (value) => values.includes(value as string),
  };
}

/** An object with these methods, of this copy of a package or another. */
export function having(expected: string, ...methods: readonly string[]): OptionRule {
  return {
    expected,
    holds: (value) =>
      typeof value === 'object' &&
      value !== null &&
      methods.every((name) => typeof Reflect.get(value, name) === 'function'),
  };
}

export const OBJECT: OptionRule = having('an object');
