// Reads environment variables for the readers of launchers. Numbers are checked, an empty variable
// counts as not set, and the names of variables that were read are kept, so that an error or a log
// can name them.

import { LaunchError } from '../../errors.js';

/**
 * Environment variables by name, as `process.env` has them. One that is empty counts as not set.
 */
export type EnvVariables = Readonly<Record<string, string | undefined>>;

export class Environment {
  readonly #variables: EnvVariables;
  readonly #taken = new Set<string>();

  constructor(variables: EnvVariables) {
    this.#variables = variables;
  }

  /** The names of the variables that were read and set, in the order of reading. */
  get taken(): readonly string[] {
    return [...this.#taken];
  }

  has(name: string): boolean {
    return (this.#variables[name] ?? '') !== '';
  }

  /** The value of the first of `names` that is set. */
  text(...names: readonly string[]): string | undefined {
    const name = names.find((variable) => this.has(variable));
    if (name === undefined) {
      return undefined;
    }
    this.#taken.add(name);
    return this.#variables[name];
  }

  /**
   * The same as a whole number of at least `min`.
   * @throws {LaunchError} where it is not such a number
   */
  count(names: readonly string[], min = 0): number | undefined {
    const name = names.find((variable) => this.has(variable));
    return name === undefined ? undefined : this.#number(name, min);
  }

  /** Like count, but throws LaunchError with `remedy` where none of `names` is set. */
  requiredCount(names: readonly [string, ...string[]], min: number, remedy: string): number {
    const value = this.count(names, min);
    if (value === undefined) {
      throw new LaunchError(names[0], undefined, { problem: 'expected a number', remedy });
    }
    return value;
  }

  /** A TCP port that a process can be reached at. */
  port(...names: readonly string[]): number | undefined {
    const name = names.find((variable) => this.has(variable));
    if (name === undefined) {
      return undefined;
    }
    const port = this.#number(name, 1);
    if (port > 65_535) {
      const remedy = 'Set it to a free port of the first host, for example 29500.';
      throw new LaunchError(name, String(port), { problem: 'expected a port up to 65535', remedy });
    }
    return port;
  }

  #number(name: string, min: number): number {
    const value = this.text(name)!;
    const number = Number(value);
    if (!/^\d+$/.test(value.trim()) || !Number.isSafeInteger(number) || number < min) {
      throw new LaunchError(name, value, {
        problem: `expected a whole number from ${min}`,
        remedy: 'Set it to one, or unset it.',
      });
    }
    return number;
  }
}
