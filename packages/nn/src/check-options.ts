// Checks options as plain JavaScript gives them, and says what is wrong with one:
// `LayerNorm: expected dim to be a whole number of at least 1, got "32".`

import { NnConfigError } from './errors.js';

/** What an option may be. */
export interface OptionRule {
  /** Completes "expected lr to be ...". */
  readonly expected: string;
  /** Whether undefined, the default, is one of them. */
  readonly isOptional?: boolean;
  holds(value: unknown): boolean;
}

/** A rule for each option, so that none can be forgotten and others are unknown. */
export type OptionRules<Options> = { readonly [Name in keyof Options]-?: OptionRule };

/**
 * @param owner the class or function, as messages begin
 * @throws {NnConfigError} for what is no object, an unknown option, and one that breaks its rule
 */
export function checkOptions<Options>(
  owner: string,
  options: unknown,
  rules: OptionRules<Options>,
): void {
  const known: Readonly<Record<string, OptionRule>> = rules;
  const names = Object.keys(known);
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new NnConfigError(
      `${owner}: expected an object of options (${names.join(', ')}), got ${shown(options)}.`,
    );
  }
  const unknown = Object.keys(options).find((name) => !Object.hasOwn(known, name));
  if (unknown !== undefined) {
    throw new NnConfigError(
      `${owner}: expected options among ${names.join(', ')}, got '${unknown}'.`,
    );
  }
  for (const [name, rule] of Object.entries(known)) {
    checkValue(owner, name, (options as Readonly<Record<string, unknown>>)[name], rule);
  }
}

/** @throws {NnConfigError} where the value breaks the rule */
export function checkValue(owner: string, name: string, value: unknown, rule: OptionRule): void {
  if (value === undefined && rule.isOptional === true) {
    return;
  }
  if (rule.holds(value)) {
    return;
  }
  throw new NnConfigError(
    `${owner}: expected ${name} to be ${rule.expected}, got ${shown(value)}.`,
  );
}

/** Options without those that are undefined, which would hide defaults where they are spread. */
export function given<Options extends object>(options: Options): Partial<Options> {
  const entries = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as Partial<Options>;
}

/** A value, as messages name what came. */
export function shown(value: unknown): string {
  if (value === undefined) {
    return 'nothing';
  }
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

// ---- rules -------------------------------------------------------------------------------------

export function optional(rule: OptionRule): OptionRule {
  return { ...rule, isOptional: true };
}

export function whole(least: number): OptionRule {
  return {
    expected: `a whole number of at least ${least}`,
    holds: (value) => Number.isSafeInteger(value) && (value as number) >= least,
  };
}

export function atLeast(least: number): OptionRule {
  return {
    expected: `a finite number of at least ${least}`,
    holds: (value) => Number.isFinite(value) && (value as number) >= least,
  };
}

export function above(bound: number): OptionRule {
  return {
    expected: `a finite number above ${bound}`,
    holds: (value) => Number.isFinite(value) && (value as number) > bound,
  };
}

/** A share that may be 0 and never 1. */
export const PROBABILITY: OptionRule = {
  expected: 'a number in [0, 1)',
  holds: isProbability,
};

export function isProbability(value: unknown): boolean {
  return typeof value === 'number' && value >= 0 && value < 1;
}

export const FLAG: OptionRule = {
  expected: 'true or false',
  holds: (value) => typeof value === 'boolean',
};

export const SEED: OptionRule = {
  expected: 'a safe integer',
  holds: (value) => Number.isSafeInteger(value),
};

export const FUNCTION: OptionRule = {
  expected: 'a function',
  holds: (value) => typeof value === 'function',
};

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

/** Where a layer's initial values come from; it may be left out. */
export const INIT = optional(having('a ParameterInit', 'normal', 'uniform', 'zeros', 'ones'));
