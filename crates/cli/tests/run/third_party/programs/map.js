// A Map of strings and objects and some typed arrays, filled and read in another order.
// Argument: entries.
const entries = Number(process.argv[2] ?? 300000);
const table = new Map();
for (let n = 0; n < entries; n++) table.set(`key ${n}`, { n, text: `value ${n * 7}`, list: [n, n + 1] });
for (let n = 0; n < entries; n += 3) table.delete(`key ${n}`);
const buffers = [];
for (let n = 0; n < entries / 1000; n++) buffers.push(Buffer.alloc(65536, n & 255));
let at = 1;
let sum = 0;
let wrong = 0;
for (let round = 0; round < entries / 20; round++) {
  at = (at * 48271) % 2147483647;
  const n = at % entries;
  const found = table.get(`key ${n}`);
  if (n % 3 === 0 ? found !== undefined : found === undefined || found.n !== n || found.text !== `value ${n * 7}` || found.list[1] !== n + 1) wrong++;
  if (found) sum += found.list[0] % 1000;
}
buffers.forEach((buffer, n) => { if (buffer[n % 65536] !== (n & 255) || buffer[65535] !== (n & 255)) wrong++; });
console.log(`${table.size} entries, ${buffers.length} buffers, sum ${sum}, wrong ${wrong}`);
process.exit(wrong ? 1 : 0);
