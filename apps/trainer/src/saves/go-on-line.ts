// The command line that goes on with a run, to be copied into a shell.

/** The command that was given with `args`, and --resume auto in the place of any other. */
export function goOnLine(args: readonly string[]): string {
  const own = args.filter(
    (arg, i) => arg !== '--resume' && args[i - 1] !== '--resume' && !arg.startsWith('--resume='),
  );
  return ['npm run train --', ...own.map(quoted), '--resume auto'].join(' ');
}

/** Whatever a shell could take for more than a word. */
function quoted(word: string): string {
  return /^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
