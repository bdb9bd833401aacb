// Steps by column: a name appears once, and not once per step, which makes the text of a run of
// many steps three times shorter.

import type { RunRecord, StepLine } from '../output/run-records.js';

/** The values of consecutive steps by name; null where a step has none. */
export interface StepTable {
  readonly type: 'steps';
  readonly columns: Readonly<Record<string, readonly unknown[]>>;
}

export type PageRecord = RunRecord | StepTable;

/**
 * The same records with all steps in one table at the front, because no other record depends on
 * their number.
 */
export function packSteps(records: readonly RunRecord[]): PageRecord[] {
  const lines: StepLine[] = [];
  const out: PageRecord[] = [];
  for (const record of records) {
    if (record.type !== 'step') {
      out.push(record);
      continue;
    }
    const { type: _, ...line } = record;
    lines.push(line);
  }
  const names = [...new Set(lines.flatMap((line) => Object.keys(line)))];
  const columns = Object.fromEntries(
    names.map((name) => [
      name,
      lines.map((line) => (line as unknown as Record<string, unknown>)[name] ?? null),
    ]),
  );
  return lines.length === 0 ? out : [{ type: 'steps', columns }, ...out];
}

export function unpackSteps({ columns }: StepTable): StepLine[] {
  const names = Object.keys(columns);
  const { length } = columns.step ?? [];
  return Array.from(
    { length },
    (_, i) => Object.fromEntries(names.map((name) => [name, columns[name]![i]])) as never,
  );
}
