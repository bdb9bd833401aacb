// Steps by column: a name appears once, and not once per step, which makes the text of a run of
// many steps three times shorter.

import type { EventRecord, RunRecord, StepLine } from '../../output/run-records.js';

/** The values of steps by name; null where a step has none. */
export interface StepTable {
  readonly type: 'steps';
  readonly columns: Readonly<Record<string, readonly unknown[]>>;
  /** The number of steps of which these are some; absent where they are all. */
  readonly of?: number;
}

export type PageRecord = RunRecord | StepTable;

/**
 * The records with all steps in one table at the front, because no other record depends on their
 * number.
 * @param numSteps the number of steps, where `lines` are those that show all of them
 */
export function packSteps(
  records: readonly EventRecord[],
  lines: readonly StepLine[],
  numSteps = lines.length,
): PageRecord[] {
  if (lines.length === 0) {
    return [...records];
  }
  const names = [...new Set(lines.flatMap((line) => Object.keys(line)))];
  const columns = Object.fromEntries(
    names.map((name) => [
      name,
      lines.map((line) => (line as unknown as Record<string, unknown>)[name] ?? null),
    ]),
  );
  const of = numSteps > lines.length ? { of: numSteps } : {};
  return [{ type: 'steps', columns, ...of }, ...records];
}

export function unpackSteps({ columns }: StepTable): StepLine[] {
  const names = Object.keys(columns);
  const { length } = columns.step ?? [];
  return Array.from(
    { length },
    (_, i) => Object.fromEntries(names.map((name) => [name, columns[name]![i]])) as never,
  );
}
