// The files beside an embedder's transformer that say how its rows become one a text, as
// sentence-transformers writes them. That of the pooling has a folder, which modules.json names.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export const MODULES_FILE = 'modules.json';
/** Those in the directory itself. */
export const SENTENCE_FILES: readonly string[] = [
  MODULES_FILE,
  'config_sentence_transformers.json',
  'sentence_bert_config.json',
];
/** A folder in the directory. Names may come from strangers, and none may lead elsewhere. */
const FOLDER = /^(?!\.)[^/\\:]+$/;

/** The path of the pooling's file, as modules.json in `directory` has it; undefined without one. */
export function poolingFile(directory: string): string | undefined {
  const path = modulesIn(directory).find(({ type }) => /\.Pooling$/.test(String(type)))?.path;
  return typeof path === 'string' && FOLDER.test(path) ? `${path}/config.json` : undefined;
}

/** The list in modules.json; empty where there is none, or none that can be read. */
function modulesIn(directory: string): readonly Readonly<Record<string, unknown>>[] {
  try {
    const list: unknown = JSON.parse(readFileSync(join(directory, MODULES_FILE), 'utf8'));
    return Array.isArray(list) ? list.map((module) => Object(module)) : [];
  } catch {
    return []; // who needs them says what is wrong
  }
}
