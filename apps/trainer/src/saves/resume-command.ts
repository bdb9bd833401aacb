// Makes the command line that goes on with a run, to be copied into a shell.

/**
 * The command that was given with `args`, its name first, in the way in which it was called, with
 * --resume auto in place of any other --resume.
 * @param env the environment, in which npm tells what it was asked to run
 * @param lr another learning rate than the one that was given
 */
export function resumeCommand(
  args: readonly string[],
  env: NodeJS.ProcessEnv,
  { lr }: { readonly lr?: number | undefined } = {},
): string {
  const [name, ...flags] = args;
  const own =
    lr === undefined
      ? without(flags, '--resume')
      : [...without(without(flags, '--resume'), '--lr'), '--lr', `${lr}`];
  const npx = env.npm_command === 'exec' ? 'npx ' : '';
  const how = env.npm_lifecycle_event === name ? `npm run ${name} --` : `${npx}shardweave ${name}`;
  return [how, ...own.map(quoted), '--resume auto'].join(' ');
}

function without(args: readonly string[], flag: string): readonly string[] {
  return args.filter(
    (arg, i) => arg !== flag && args[i - 1] !== flag && !arg.startsWith(`${flag}=`),
  );
}

/** Quotes a word that a shell could take for something else. */
function quoted(word: string): string {
  return /^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
