// The command line of a bench.

import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { parseArgs } from 'node:util';

/**
 * The flags of the bench that runs, by name. `--help` prints the head of its file, which has its
 * usage, and ends; a mistake is told in a sentence, with exit code 2.
 * @param {Record<string, string | boolean | undefined>} defaults a text, or undefined for one
 * without a default; a boolean takes no value
 */
export function flagsOf(defaults) {
  const option = (value) =>
    typeof value === 'boolean'
      ? { type: 'boolean', default: value }
      : { type: 'string', ...(value !== undefined && { default: value }) };
  const all = Object.entries({ ...defaults, help: false });
  try {
    const { values } = parseArgs({
      options: Object.fromEntries(all.map(([name, value]) => [name, option(value)])),
    });
    if (values.help) {
      console.log(usageOf(process.argv[1]));
      process.exit(0);
    }
    return values;
  } catch (error) {
    console.error(
      `${basename(process.argv[1])}: ${error.message.replace(/\.?$/, '.')} See --help.`,
    );
    return process.exit(2);
  }
}

/** The comment that a file begins with. */
function usageOf(file) {
  const lines = readFileSync(file, 'utf8').split('\n');
  const end = lines.findIndex((line) => !line.startsWith('//'));
  return lines
    .slice(0, end)
    .join('\n')
    .replaceAll(/^\/\/ ?/gm, '');
}
