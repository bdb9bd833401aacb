// What a run that is resumed was given, by the config that it has left.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { RUN_FILES } from '../files/run-files.js';

/** The flags that tell whether a run goes on, and which; a command may lack them. */
export interface ResumeFlags {
  readonly out?: string | undefined;
  readonly resume?: string | undefined;
}

/**
 * The value that the config of the resumed run has under a key; undefined where no such run goes
 * on, or where nobody can read its config: its save tells what fits.
 */
export function keptValue(key: string, { out, resume }: ResumeFlags): unknown {
  // A save is two directories below its run.
  const places = resume === 'auto' ? [out] : resume && [resume, join(resume, '..', '..')];
  const runs = (places || []).flatMap((place) => place ?? []);
  const file = runs.map((run) => join(run, RUN_FILES.config)).find((path) => existsSync(path));
  try {
    const config: unknown = parse(readFileSync(file ?? '', 'utf8'));
    return (config as Readonly<Record<string, unknown>> | null)?.[key];
  } catch {
    return undefined;
  }
}
