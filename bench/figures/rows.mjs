// Rows of a long run, a line of JSON each in a file. A row is written when it is measured, so that
// whatever ends the run leaves what came before. The rows of a part lie between a line that says
// that it begins and one that says how it ended, which a part that was broken off lacks.

import { appendFileSync, existsSync, readFileSync } from 'node:fs';

/** @param {string | undefined} file without one, nothing is written */
export function appendRow(file, row) {
  if (file !== undefined) {
    appendFileSync(file, `${JSON.stringify(row)}\n`);
  }
}

/**
 * @returns {{ about: object, parts: { part: string, rows: object[], ended?: number | string,
 * seconds?: number, tail?: string }[] }} what the file says of the machine, and the latest run of
 * each part
 */
export function readRows(file) {
  const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n').flatMap(parsed) : [];
  const parts = new Map();
  let about = {};
  let open;
  for (const { begins, ends, machine, ...row } of lines) {
    if (machine !== undefined) {
      about = machine;
    } else if (begins !== undefined) {
      open = { part: begins, rows: [] };
      parts.delete(begins);
      parts.set(begins, open);
    } else if (ends !== undefined) {
      Object.assign(open, row);
    } else {
      open?.rows.push(row);
    }
  }
  return { about, parts: [...parts.values()] };
}

/** Leaves out a line that its process could not write to the end. */
function parsed(line) {
  try {
    return [JSON.parse(line)];
  } catch {
    return [];
  }
}
