// Finds the file of a library as the system's loader would, without loading it: what it does when
// it is loaded has to be tried in a process of its own first.

const { existsSync, readFileSync, realpathSync } = process.getBuiltinModule('node:fs');
const { delimiter, isAbsolute, join, resolve } = process.getBuiltinModule('node:path');

/** The libraries that are taken by their name alone, in their order. */
const KNOWN: Partial<Record<NodeJS.Platform, readonly string[]>> = {
  darwin: [
    '/System/Library/Frameworks/Accelerate.framework/Accelerate',
    '/opt/homebrew/opt/openblas/lib/libopenblas.dylib',
    '/usr/local/opt/openblas/lib/libopenblas.dylib',
  ],
  linux: ['libopenblas.so.0'],
  win32: ['libopenblas.dll'],
};

/** What tells where a machine keeps libraries. */
export interface LibraryPlaces {
  readonly platform: NodeJS.Platform;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** The content of the loader's own list on Linux, which has paths between zero bytes. */
  readonly loaderCache: () => string;
}

const thisMachine = (): LibraryPlaces => ({
  platform: process.platform,
  env: process.env,
  loaderCache: () => {
    const file = '/etc/ld.so.cache';
    return existsSync(file) ? readFileSync(file, 'latin1') : '';
  },
});

/**
 * Returns the files that may be meant, the likeliest first: of the library with this name or path,
 * or of those that are known.
 */
export function locateLibrary(name: string | undefined, places = thisMachine()): string[] {
  const names = name === undefined ? (KNOWN[places.platform] ?? []) : [name];
  const files = names.flatMap((candidate) => filesOf(candidate, places));
  return [...new Set(files.map((file) => (isFramework(file) ? file : realpathSync(file))))];
}

/** Returns the files of oneDNN, where the processor has a matrix unit for bf16 (AMX). */
export function locateBf16Library(): string[] {
  const hasUnit = process.platform === 'linux' && /\bamx_bf16\b/.test(readProcessor());
  return hasUnit ? ['libdnnl.so.3', 'libdnnl.so.2'].flatMap((name) => locateLibrary(name)) : [];
}

/** What Linux tells of the first processor. */
export function readProcessor(): string {
  try {
    return readFileSync('/proc/cpuinfo', 'utf8').split('\n\n')[0]!;
  } catch {
    return '';
  }
}

/** Frameworks of macOS have no file: the system keeps all of them in one cache. */
const isFramework = (file: string) => file.startsWith('/System/Library/');

function filesOf(name: string, { platform, env, loaderCache }: LibraryPlaces): string[] {
  if (isFramework(name)) {
    return platform === 'darwin' ? [name] : [];
  }
  if (/[\\/]/.test(name)) {
    return [resolve(name)].filter((file) => existsSync(file));
  }
  const [variable, folders] =
    platform === 'win32'
      ? ['PATH', []]
      : platform === 'darwin'
        ? ['DYLD_LIBRARY_PATH', ['/opt/homebrew/lib', '/usr/local/lib']]
        : ['LD_LIBRARY_PATH', ['/usr/local/lib', '/usr/lib64', '/usr/lib', '/lib']];
  const first = (env[variable] ?? '').split(delimiter).filter(isAbsolute);
  const listed = platform === 'linux' ? listedIn(loaderCache(), name) : [];
  const inFolders = (all: readonly string[]) => all.map((folder) => join(folder, name));
  const files = [...inFolders(first), ...listed, ...inFolders(folders)];
  return files.filter((file) => existsSync(file));
}

function listedIn(cache: string, name: string): string[] {
  // The list has thousands of paths, and each device that opens looks for one.
  const ending = `/${name}\0`;
  const found: string[] = [];
  for (let at = cache.indexOf(ending); at >= 0; at = cache.indexOf(ending, at + 1)) {
    found.push(cache.slice(cache.lastIndexOf('\0', at) + 1, at + ending.length - 1));
  }
  return found.filter((path) => path.startsWith('/'));
}
