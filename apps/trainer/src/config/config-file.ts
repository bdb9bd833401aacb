// Reads a run's flags from a file in YAML, of which JSON is a part. A complaint names the file and
// the line.

import { readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { isMap, isScalar, LineCounter, type Node, parseDocument, stringify } from 'yaml';
import { UsageError } from '../errors.js';
import { type FlagTable, keyOf, type ValuesOf } from '../flags/flag.js';
import { checkValue } from '../flags/flag-kinds.js';
import { nearest } from '../nearest.js';
import { stateOf } from '../saves/run-state.js';
import { describeSystemError } from '../system-error.js';

/**
 * The values of a file, by the names of its keys' flags.
 * @throws {UsageError} for a file that can't be read, an unknown key, or a value that the key
 * doesn't take
 */
export function readConfigFile<Table extends FlagTable>(
  path: string,
  flags: Table,
): Partial<ValuesOf<Table>> {
  const names = new Map(Object.keys(flags).map((name) => [keyOf(name), name]));
  const lineCounter = new LineCounter();
  const document = parseDocument(readText(path), { lineCounter });
  const refuse = (at: Node | null | undefined, problem: string): never => {
    const offset = at?.range?.[0] ?? 0;
    throw new UsageError(`--config: ${path}, line ${lineCounter.linePos(offset).line}: ${problem}`);
  };
  const [error] = document.errors;
  if (error !== undefined) {
    const [what] = error.message.split(/ at line |\n/);
    const line = error.linePos?.[0].line ?? 1;
    throw new UsageError(`--config: ${path}, line ${line}: ${what}. Give YAML or JSON.`);
  }
  const { contents } = document;
  if (contents === null) {
    return {};
  }
  if (!isMap(contents)) {
    return refuse(contents, 'expected flags as "key: value" lines, such as "ranks: 2".');
  }
  const found: Record<string, unknown> = {};
  for (const { key, value } of contents.items) {
    const keyNode = key as Node;
    const text = isScalar(key) ? String(key.value) : String(key);
    const name = names.get(text);
    if (name === undefined) {
      const meant = nearest(text, names.keys());
      const hint = meant === undefined ? '' : ` Did you mean ${meant}?`;
      return refuse(
        keyNode,
        `unknown key "${text}".${hint} Keys are the flags of train --help all.`,
      );
    }
    const given = (value as Node | null)?.toJS(document) ?? null;
    // A number is quoted as it stands there, for it may be more than the language counts to.
    const written = typeof given === 'number' && isScalar(value) ? value.source : undefined;
    const checked = checkValue(flags[name]!.kind, given, written ?? JSON.stringify(given));
    if (checked.problem !== undefined) {
      return refuse(keyNode, `${text}: ${checked.problem}`);
    }
    found[name] = checked.value;
  }
  return found as Partial<ValuesOf<Table>>;
}

/**
 * Refuses a file whose run has moved. A run's directory may have another name than when its
 * config.yaml was written, and --resume auto would begin anew under the old name.
 * @throws {UsageError} where the run beside the file `path` is not the one that would go on
 */
export function refuseMovedRun(
  path: string,
  { out, resume }: { readonly out?: unknown; readonly resume?: unknown },
): void {
  const own = dirname(path);
  const isHere = (directory: string) => !['none', 'foreign'].includes(stateOf(directory).is);
  if (resume === 'auto' && typeof out === 'string' && isHere(own) && !isHere(out)) {
    throw new UsageError(
      `--config: the run of ${path} was moved, for its out is ${out}, which is not there. Add --out ${own} to go on with it.`,
    );
  }
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (cause) {
    throw new UsageError(
      `--config: ${path} can't be read (${describeSystemError(cause)}). Give a YAML or JSON file of flags.`,
      { cause },
    );
  }
}

/** The text of a file with `values`; undefined ones are left out. */
export function configText(values: Readonly<Record<string, unknown>>): string {
  const given = Object.entries(values).filter(([, value]) => value !== undefined);
  return `# This run: shardweave train --config FILE --out ANOTHER\n${stringify(Object.fromEntries(given))}`;
}
