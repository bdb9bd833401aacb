// Reads the lists of mutants and checks them: each text occurs exactly once, and each test exists.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';
import { ROOT } from '../setup/root.mjs';

const LISTS = fileURLToPath(new URL('list/', import.meta.url));
const REQUIRED = ['id', 'says', 'file', 'find', 'replace', 'test'];
const FIELDS = [...REQUIRED, 'name'];

/**
 * @typedef {{list: string, id: string, says: string, file: string, find: string, replace: string,
 * test: string, name?: string}} Mutant
 */

/** @returns {Mutant[]} in the order of the lists' names */
export function readMutants() {
  return readdirSync(LISTS)
    .filter((name) => name.endsWith('.yaml'))
    .sort()
    .flatMap((name) => {
      const entries = parse(readFileSync(join(LISTS, name), 'utf8')) ?? [];
      return entries.map((entry) => ({ list: name.replace('.yaml', ''), ...entry }));
    });
}

/**
 * What is wrong with the entry of one mutant, in one sentence for each fault; empty where nothing
 * is.
 */
export function faultsOf(mutant) {
  const faults = [];
  for (const field of REQUIRED) {
    if (typeof mutant[field] !== 'string') {
      faults.push(`${field}: expected text`);
    }
  }
  for (const field of Object.keys(mutant)) {
    if (field !== 'list' && !FIELDS.includes(field)) {
      faults.push(`${field}: unknown`);
    }
  }
  if (faults.length > 0) {
    return faults;
  }
  if (!existsSync(join(ROOT, mutant.test))) {
    faults.push(`test: ${mutant.test} is not there`);
  }
  if (!existsSync(join(ROOT, mutant.file))) {
    return [...faults, `file: ${mutant.file} is not there`];
  }
  const count = readFileSync(join(ROOT, mutant.file), 'utf8').split(mutant.find).length - 1;
  if (count !== 1) {
    faults.push(`find: expected once in ${mutant.file}, found ${count} times`);
  }
  if (mutant.find === mutant.replace) {
    faults.push('replace: the same as find');
  }
  return faults;
}
