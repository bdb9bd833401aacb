// What a run that was asked to end has left under --out.

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';

/** The names of the saves, whether the page is there, and the last line of events.jsonl. */
export function leftRun(out: string) {
  const saves = join(out, 'saves');
  const events = readFileSync(join(out, 'events.jsonl'), 'utf8').trimEnd().split('\n');
  return {
    saves: (existsSync(saves) ? readdirSync(saves) : []).filter((name) => /^step-\d+$/.test(name)),
    hasReport: existsSync(join(out, 'report.html')),
    last: JSON.parse(events.at(-1)!) as object,
  };
}

/** The same of a run that has saved and said why it ended. */
export const SAVED = {
  saves: [expect.stringMatching(/^step-\d+$/)],
  hasReport: true,
  last: expect.objectContaining({ type: 'runEnd', end: 'stopped' }),
};
