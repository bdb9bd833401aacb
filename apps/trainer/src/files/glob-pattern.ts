// Patterns of files, as READMEs of data sets and people write them.

const GLOB = /\*\*\/|\*\*+|\*|\?|\[!?[\w.-]+\]|[^*?]/g;
const MAGIC = /[*?]|\[!?[\w.-]+\]/;

/** Whether a path has something in it that a pattern has. */
export function isGlob(path: string): boolean {
  return MAGIC.test(path);
}

/** The paths that a pattern means: `*` stays in a folder, and `**` does not. */
export function globPattern(glob: string): RegExp {
  const escaped = (part: string) => part.replaceAll(/[\\^$.*+?()[\]{}|]/g, '\\$&');
  const parts = (glob.match(GLOB) ?? []).map((part) => {
    if (part.startsWith('*')) {
      return part === '**/' ? '(?:.*/)?' : part === '*' ? '[^/]*' : '.*';
    }
    const isSet = part.length > 1;
    return part === '?' ? '[^/]' : isSet ? part.replace('[!', '[^') : escaped(part);
  });
  try {
    return new RegExp(`^${parts.join('')}$`);
  } catch {
    return new RegExp(`^${escaped(glob)}$`); // a set such as [z-a]
  }
}
