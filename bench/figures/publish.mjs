// A report is a Markdown file for people, and JSON beside it, which the READMEs quote.
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { REPORTS, renderReadmes } from './readmes.mjs';

/**
 * Prints the report, writes it with its JSON where a path was given, and renders what READMEs quote
 * of it where that path is in bench/reports.
 * @param {string | undefined} path of the Markdown file
 */
export function publish(path, text, record) {
  console.log(text);
  if (path === undefined) {
    return;
  }
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text.endsWith('\n') ? text : `${text}\n`);
  writeFileSync(path.replace(/(\.md)?$/, '.json'), `${JSON.stringify(record, undefined, 1)}\n`);
  if (dirname(resolve(path)) !== REPORTS) {
    return;
  }
  for (const file of renderReadmes()) {
    console.error(`${file}: figures renewed`);
  }
}
