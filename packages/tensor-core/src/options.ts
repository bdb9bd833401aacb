// Checks of options that plain JavaScript may pass, for this package and those built on it. An
// unknown name or a wrong type is reported where it is passed, not where it first does harm:
// `LayerNorm: expected dim to be a whole number of at least 1, got "32".`

import { nearestName } from './nearest-name.js';

/** A rule that says which values an option may have. */
export interface OptionRule {
  /** The words that complete "expected lr to be ...". */
  readonly expected: string;
  /** Whether undefined is allowed as well, so that the option may be left out. */
  readonly isOptional?: boolean;
  holds(value: unknown): boolean;
}

/** A rule for each option, so that none can be forgotten and others are unknown. */
export type OptionRules<Options> = { readonly [Name in keyof Options]-?: OptionRule };

/** The checks of one package, which throw that package's error class. */
export interface OptionChecks {
  /**
   * Refuses a value that is no object, an unknown option, and an option that breaks its rule. An
   * unknown option whose value is undefined is ignored.
   * @param owner the class or function with whose name messages begin
   */
  checkOptions<Options>(owner: string, options: unknown, rules: OptionRules<Options>): void;
  /** Refuses a value that is no object, and an unknown option. */
  checkNames(owner: string, options: unknown, names: readonly string[]): void;
  /** Refuses a value that breaks the rule. */
  checkValue(owner: string, name: string, value: unknown, rule: OptionRule): void;
}

/**
 * Makes the checks of one package.
 * @param OptionError the class that the checks throw
 * @param answers names of options that other versions or systems have, in camelCase, each with a
 * hint about what to use here, which the message includes
 */
export function optionChecks(
  OptionError: new (message: string) => Error,
  answers: Readonly<Record<string, string>> = {},
): OptionChecks {
  const checks: OptionChecks = {
    checkOptions(owner, options, rules) {
      const known: Readonly<Record<string, OptionRule>> = rules;
      const names = Object.keys(known);
      checks.checkNames(owner, options, names);
      for (const name of names) {
        const value = (options as Readonly<Record<string, unknown>>)[name];
        checks.checkValue(owner, name, value, known[name]!);
      }
    },
    checkNames(owner, options, names) {
      if (typeof options !== 'object' || options === null || Array.isArray(options)) {
        throw new OptionError(
          `${owner}: expected an object of options (${names.join(', ')}), got ${shown(options)}.`,
        );
      }
      // Inherited properties count as well, since options may be made with Object.create.
      for (const name in options) {
        if (names.includes(name) || Reflect.get(options, name) === undefined) {
          continue;
        }
        const camel = name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
        const hint = (Object.hasOwn(answers, camel) && answers[camel]) || hintOf(name, names);
        throw new OptionError(`${owner}: expected known options, got '${name}'. ${hint}`);
      }
    },
    checkValue(owner, name, value, rule) {
      if ((value === undefined && rule.isOptional === true) || rule.holds(value)) {
        return;
      }
      const hint = value instanceof Promise ? ' Await it.' : '';
      throw new OptionError(
        `${owner}: expected ${name} to be ${rule.expected}, got ${shown(value)}.${hint}`,
      );
    },
  };
  return checks;
}

function hintOf(name: string, known: readonly string[]): string {
  const nearest = nearestName(name, known);
  return nearest === undefined ? `Known ones: ${known.join(', ')}.` : `Did you mean ${nearest}?`;
}

/** Returns options without those that are undefined, which would hide defaults when spread. */
export function given<Options extends object>(options: Options): Partial<Options> {
  const entries = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as Partial<Options>;
}

/** Returns a value in the form in which messages name it. */
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
  if (value instanceof Promise) {
    return 'a promise';
  }
  const { name } = value.constructor ?? Object;
  return name === 'Object' ? 'a plain object' : `an object of ${name}`;
}

// ---- rules -------------------------------------------------------------------------------------

/** Returns a rule that also lets undefined pass. */
export function optional(rule: OptionRule): OptionRule {
  return { ...rule, isOptional: true };
}

/** Returns rules that also let undefined pass, for options that may all be left out. */
export function allOptional<Rules extends Readonly<Record<string, OptionRule>>>(
  rules: Rules,
): { readonly [Name in keyof Rules]: OptionRule } {
  const entries = Object.entries(rules).map(([name, rule]) => [name, optional(rule)]);
  return Object.fromEntries(entries) as { readonly [Name in keyof Rules]: OptionRule };
}

/** A safe integer of at least `least`. */
export function whole(least: number): OptionRule {
  return {
    expected: `a whole number of at least ${least}`,
    holds: (value) => Number.isSafeInteger(value) && (value as number) >= least,
  };
}

/** A finite number of at least `least`. */
export function atLeast(least: number): OptionRule {
  return {
    expected: `a finite number of at least ${least}`,
    holds: (value) => Number.isFinite(value) && (value as number) >= least,
  };
}

/** A finite number greater than `bound`. */
export function above(bound: number): OptionRule {
  return {
    expected: `a finite number above ${bound}`,
    holds: (value) => Number.isFinite(value) && (value as number) > bound,
  };
}

/** A finite number, negative ones included. */
export const FINITE: OptionRule = { expected: 'a finite number', holds: Number.isFinite };

/** A boolean: true or false, and not merely something truthy. */
export const FLAG: OptionRule = {
  expected: 'true or false',
  holds: (value) => typeof value === 'boolean',
};

/** A string, the empty one included. */
export const TEXT: OptionRule = {
  expected: 'a text',
  holds: (value) => typeof value === 'string',
};

/** An integer that a double holds exactly, negative ones included. */
export const SEED: OptionRule = { expected: 'a safe integer', holds: Number.isSafeInteger };

/** A function, asynchronous ones and classes included. */
export const FUNCTION: OptionRule = {
  expected: 'a function',
  holds: (value) => typeof value === 'function',
};

/** An array; what it contains is checked elsewhere. */
export const LIST: OptionRule = { expected: 'an array', holds: Array.isArray };

/** One of these strings. */
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
      !Array.isArray(value) &&
      methods.every((name) => typeof Reflect.get(value, name) === 'function'),
  };
}

/** An object that is no array; what it contains is checked elsewhere. */
export const OBJECT: OptionRule = having('an object');
