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
  writeFileSync(path.replace(/(\.md)?$/, '.json'), `${JSON.stringify(record, undefined, 1)}\n`);
  if (dirname(resolve(path)) !== REPORTS) {
    return;
  }
  for (const file of renderReadmes()) {
    console.error(`${file}: figures renewed`);
  }
}
