// Takes out of texts what concerns the user's machine alone: paths, which have names of users in
// them.

import { win32 } from 'node:path';
import { configText } from '../config/config-file.js';
import { dataNames, withEntries } from '../data/data-parts.js';
import { type Flag, keyOf } from '../flags/flag.js';
import { data, file, fileOrNone } from '../flags/flag-kinds.js';
import { FLAGS } from '../flags/train-flags.js';
import { homeDirectory } from '../home-directory.js';
import { isDataName } from '../hub/data-name.js';
import { hubNameOf } from '../hub/hub-name.js';
import { parseModelName } from '../hub/model-name.js';
import { isPresetName } from '../model/presets.js';

/** Flags of a file or directory that a run needs, which stay by the last part of their path. */
const NAMED = ['model', 'data', 'valid', 'adapter'];

/** Those of them that may be names on the Hub. */
const HUB_KEYS = ['model', 'adapter'];

/** A config.yaml for others. */
export interface PublicConfig {
  readonly text: string;
  /** The keys that are left out. */
  readonly left: readonly string[];
  /** The keys whose paths have become names. */
  readonly named: readonly string[];
}

/** The values of a config.yaml without paths of this machine, and without what is no flag. */
export function publicConfig(config: Readonly<Record<string, unknown>>): PublicConfig {
  const kinds = new Map<string, Flag<unknown>['kind']>(
    Object.entries(FLAGS).map(([name, { kind }]) => [keyOf(name), kind as never]),
  );
  const values: Record<string, unknown> = {};
  const [left, named]: [string[], string[]] = [[], []];
  for (const [key, value] of Object.entries(config)) {
    const kind = kinds.get(key);
    const isPath = [data, file, fileOrNone].some((own) => kind === (own as unknown));
    const isData = kind === (data as unknown);
    const given = String(value);
    const isName =
      (isData && dataNames(given).every(isDataName)) ||
      (key === 'model' && isPresetName(given)) ||
      (HUB_KEYS.includes(key) && parseModelName(given));
    if (kind === undefined || (isPath && !NAMED.includes(key))) {
      left.push(key);
    } else if (isPath && !isName) {
      values[key] = isData ? withEntries(given, baseNameOf) : baseNameOf(given);
      named.push(key);
    } else {
      values[key] = value;
    }
  }
  return { text: configText(values), left, named };
}

/** The name of a model or of data by its path: its own on the Hub, else the last part. */
export function baseNameOf(path: string): string {
  if (isDataName(path)) {
    return path;
  }
  const isHome = homeDirectory() !== undefined && path === homeDirectory();
  return hubNameOf(path)?.split('@')[0] ?? (isHome ? 'model' : win32.basename(path));
}

/**
 * A text in JSON, of transformers or PEFT, whose fields name no path of this machine: they keep the
 * last part of it. One without paths stays as it is, byte by byte.
 */
export function withoutPaths(text: string): string {
  const home = homeDirectory();
  let isChanged = false;
  const json = JSON.parse(text, (key, value: unknown) => {
    if (typeof value !== 'string' || !win32.isAbsolute(value)) {
      return value;
    }
    const isBelowHome = home !== undefined && home.length > 1 && value.startsWith(home);
    if (!key.endsWith('name_or_path') && !isBelowHome) {
      return value;
    }
    isChanged = true;
    return baseNameOf(value);
  }) as unknown;
  return isChanged ? `${JSON.stringify(json, null, 2)}\n` : text;
}

/**
 * A Modelfile whose FROM names no path of this machine, since the base of another user lies
 * elsewhere.
 */
export function publicModelfile(text: string, base: string): string {
  return text.replaceAll(/^FROM +(\S.*)$/gm, (line, from: string) =>
    win32.isAbsolute(from)
      ? `# FROM names the base: a GGUF of ${base}, or a model of ollama.\nFROM ./base.gguf`
      : line,
  );
}
