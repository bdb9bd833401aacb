// Publishes a report: a Markdown file for people, and a JSON file beside it that the READMEs quote.
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { REPORTS, renderReadmes } from './readmes.mjs';

/**
 * Prints the report. With a path it also writes the report and its JSON. Where the path is in
 * bench/reports, it renders the blocks in READMEs that quote it.
 * @param {string | undefined} path path of the Markdown file
 */
export function publish(path, text, record) {
  console.log(text);
  if (path === undefined) {
    return;
  }
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text.endsWith('\n') ? text : `${text}\n`);
  writeFileSync(path.replace(/(\.md)?$/, '.json'), recordText(record));
  if (dirname(resolve(path)) !== REPORTS) {
    return;
  }
  for (const file of renderReadmes()) {
    console.error(`${file}: figures renewed`);
  }
}

/** The JSON of a report, with a line for each row of a table: `{"size": 4, "ms": 0.0215}`. */
export function recordText(record) {
  const rowsOf = (value) =>
    Array.isArray(value) && value.some((row) => typeof row === 'object')
      ? `[\n${value.map((row) => `  ${JSON.stringify(row, rounded)}`).join(',\n')}\n ]`
      : JSON.stringify(value, rounded);
  const fields = Object.entries(record).filter(([, value]) => value !== undefined);
  return `{\n${fields.map(([name, value]) => ` "${name}": ${rowsOf(value)}`).join(',\n')}\n}\n`;
}

/** Numbers have six digits: the others are noise. */
function rounded(_, value) {
  return typeof value === 'number' && !Number.isInteger(value)
    ? Number(value.toPrecision(6))
    : value;
}
