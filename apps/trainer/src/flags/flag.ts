// A flag of a command: what it accepts, what it is where nobody types it, and its help. Each
// command has a table of its flags.

import { UsageError } from '../errors.js';
import { checkValue, type FlagKind } from './flag-kinds.js';

/** A flag, or what stands beside the flags; `T` is the type that the command gets. */
export interface Flag<T> {
  readonly kind: FlagKind<NonNullable<T>>;
  /** The value where nobody gives one; undefined where the command decides. */
  readonly value: T;
  /** The flag in --help, such as `--lr <X>`; without dashes it stands beside the flags. */
  readonly typed: string;
  readonly says: string;
  /** Whether the command can't do without it. */
  readonly isNeeded: boolean;
}

/** Flags by their names in camelCase, in the order of --help. */
export type FlagTable = Readonly<Record<string, Flag<unknown>>>;

/** The values of a table's flags, each checked by itself. */
export type ValuesOf<Table extends FlagTable> = {
  readonly [Name in keyof Table]: Table[Name]['value'];
};

type Help = readonly [typed: string, says: string];

export function flag<T extends {}, V extends T | undefined>(
  kind: FlagKind<T>,
  value: V,
  [typed, says]: Help,
): Flag<V extends undefined ? T | undefined : T> {
  const made = { kind, value, typed, says, isNeeded: false };
  return made as unknown as Flag<V extends undefined ? T | undefined : T>;
}

/** A flag that the command can't do without, so that its own value is never read. */
export function needed<T extends {}>(kind: FlagKind<T>, help: Help): Flag<T> {
  return { ...flag(kind, undefined, help), isNeeded: true } as unknown as Flag<T>;
}

/** The help of a flag, with its value where nobody gives one. */
export function helpOf({ says, value }: Flag<unknown>): string {
  const isTold = typeof value === 'number' || typeof value === 'string';
  return isTold ? `${says} (default: ${value})`.trimStart() : says;
}

/** The key of a flag in a config file: as it is typed, without the dashes and without `no-`. */
export function keyOf(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}

/**
 * The values of the flags that were typed.
 * @throws {UsageError} for a value that its flag doesn't take
 */
export function readTyped<Table extends FlagTable>(
  table: Table,
  given: Readonly<Record<string, unknown>>,
): Partial<ValuesOf<Table>> {
  const read = Object.entries(given).map(([name, text]) => {
    const { kind, typed } = table[name]!;
    const checked = checkValue(kind, kind.read(text), `"${String(text)}"`);
    if (checked.problem !== undefined) {
      const flag = typed.startsWith('-') ? `--${keyOf(name)}` : typed;
      throw new UsageError(`${flag}: ${checked.problem} See --help.`);
    }
    return [name, checked.value];
  });
  return Object.fromEntries(read) as Partial<ValuesOf<Table>>;
}

/** The values of all flags, of which some are given. */
export function withDefaults<Table extends FlagTable>(
  table: Table,
  given: Partial<ValuesOf<Table>>,
): ValuesOf<Table> {
  const all = Object.entries(table).map(([name, { value }]) => [name, given[name] ?? value]);
  return Object.fromEntries(all) as ValuesOf<Table>;
}
