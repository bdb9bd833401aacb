// Another user of the machine, who listens where a rank may dial, and passes everything on to where
// rank 0 listens: stranger-relay.ts HOST PORT. It tells of each connection.

import { connect, createServer, type Socket } from 'node:net';

const NOBODY = 65_534;
const RETRY_MS = 20;

process.setgid!(NOBODY);
process.setuid!(NOBODY);
process.on('disconnect', () => process.exit());

const [host, port] = process.argv.slice(2);

/** Passes a connection on, as soon as somebody listens there. */
function passOn(socket: Socket): void {
  const onward = connect(Number(port), '127.0.0.1');
  onward.on('connect', () => socket.pipe(onward).pipe(socket));
  onward.on('error', () => setTimeout(() => passOn(socket), RETRY_MS));
}

createServer((socket) => {
  process.send!({ type: 'relayed' });
  socket.on('error', () => {});
  // On the port of rank 0 itself there is nowhere to pass it on to.
  if (host !== '127.0.0.1') {
    passOn(socket);
  }
}).listen(Number(port), host, () => process.send!({ type: 'relaying' }));
