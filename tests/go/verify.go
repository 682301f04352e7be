// Command verify judges certificates as a Kubernetes component would: with Go's crypto/x509 and crypto/tls.
//
// In: a JSON list of cases on standard input. Out: a JSON list of verdicts in the same order; an empty string is
// acceptance, anything else is the reason for a refusal. Only the standard library is used.
package main

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// Leaf is a certificate file as a server presents it, with its key file.
type Leaf struct {
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

// Case is what one CA has signed.
type Case struct {
	// Trust is what clients are given as roots.
	Trust string `json:"trust"`
	// Signer and SignerKey are the CA's certificate and key, for a leaf made here.
	Signer    string `json:"signer"`
	SignerKey string `json:"signer_key"`
	// Chain is what a server sends behind the leaf.
	Chain string `json:"chain"`
	// Subject, Names and Public are what a leaf made here is for: a Name in DER, DNS names and addresses, a public key.
	Subject bytes    `json:"subject"`
	Names   []string `json:"names"`
	Public  bytes    `json:"public"`
	// Reference is OpenSSL's leaf; without a certificate where OpenSSL made none.
	Reference Leaf `json:"reference"`
	// Ours is the leaf to judge.
	Ours  Leaf     `json:"ours"`
	Hosts []string `json:"hosts"`
}

// bytes are a list of numbers in JSON.
type bytes []byte

// UnmarshalJSON reads them.
func (b *bytes) UnmarshalJSON(text []byte) error {
	var numbers []uint16
	if err := json.Unmarshal(text, &numbers); err != nil {
		return err
	}
	for _, number := range numbers {
		*b = append(*b, byte(number))
	}
	return nil
}

// Verdict tells for which use a leaf was refused, and why.
type Verdict struct {
	Server string `json:"server"`
	Client string `json:"client"`
}

// Verdicts are those on one case.
type Verdicts struct {
	Reference Verdict `json:"reference"`
	// Made is the verdict on a leaf that Go made with the CA: whether Go accepts the CA at all.
	Made Verdict `json:"made"`
	Ours Verdict `json:"ours"`
}

func main() {
	var cases []Case
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		fmt.Fprintln(os.Stderr, "the cases cannot be read:", err)
		os.Exit(1)
	}
	verdicts := make([]Verdicts, len(cases))
	for i, c := range cases {
		made, err := c.make()
		verdicts[i] = Verdicts{Reference: c.judge(c.Reference), Made: c.judge(made), Ours: c.judge(c.Ours)}
		if err != nil {
			verdicts[i].Made = Verdict{Server: err.Error(), Client: err.Error()}
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(verdicts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (c Case) judge(leaf Leaf) Verdict {
	if leaf.Certificate == "" {
		return Verdict{Server: "there is none", Client: "there is none"}
	}
	return Verdict{Server: text(c.server(leaf)), Client: text(c.client(leaf))}
}

// make signs a leaf with the CA. Nothing of it comes from ours, which may not be there.
func (c Case) make() (Leaf, error) {
	authority, err := tls.X509KeyPair([]byte(c.Signer), []byte(c.SignerKey))
	if err != nil {
		return Leaf{}, err
	}
	parent, err := x509.ParseCertificate(authority.Certificate[0])
	if err != nil {
		return Leaf{}, err
	}
	public, err := x509.ParsePKIXPublicKey(c.Public)
	if err != nil {
		return Leaf{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(4711),
		RawSubject:   c.Subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range c.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, authority.PrivateKey)
	if err != nil {
		return Leaf{}, err
	}
	made := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return Leaf{Certificate: string(made) + c.Chain, Key: c.Reference.Key}, nil
}

func (c Case) trust() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(c.Trust))
	return pool
}

// load is what kube-apiserver does with --tls-cert-file and --tls-private-key-file.
func load(leaf Leaf) (tls.Certificate, *x509.Certificate, *x509.CertPool, error) {
	pair, err := tls.X509KeyPair([]byte(leaf.Certificate), []byte(leaf.Key))
	if err != nil {
		return pair, nil, nil, err
	}
	parsed, err := x509.ParseCertificate(pair.Certificate[0])
	intermediates := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		above, err := x509.ParseCertificate(der)
		if err != nil {
			return pair, nil, nil, err
		}
		intermediates.AddCert(above)
	}
	return pair, parsed, intermediates, err
}

func (c Case) server(leaf Leaf) error {
	pair, parsed, intermediates, err := load(leaf)
	if err != nil {
		return err
	}
	for _, host := range c.Hosts {
		_, err := parsed.Verify(x509.VerifyOptions{
			Roots:         c.trust(),
			Intermediates: intermediates,
			DNSName:       host,
			KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err != nil {
			return fmt.Errorf("as %s: %w", host, err)
		}
	}
	for _, host := range c.Hosts {
		server := &tls.Config{Certificates: []tls.Certificate{pair}}
		client := &tls.Config{RootCAs: c.trust(), ServerName: host}
		if err := handshake(server, client); err != nil {
			return fmt.Errorf("handshake as %s: %w", host, err)
		}
	}
	return nil
}

func (c Case) client(leaf Leaf) error {
	pair, parsed, intermediates, err := load(leaf)
	if err != nil {
		return err
	}
	_, err = parsed.Verify(x509.VerifyOptions{
		Roots:         c.trust(),
		Intermediates: intermediates,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	both := []tls.Certificate{pair}
	server := &tls.Config{Certificates: both, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: c.trust()}
	// It stands at the server's end for want of another, and is not judged there: its CA may be for clients alone.
	return handshake(server, &tls.Config{InsecureSkipVerify: true, Certificates: both})
}

func handshake(server, client *tls.Config) error {
	near, far := net.Pipe()
	deadline := time.Now().Add(10 * time.Second)
	for _, end := range []net.Conn{near, far} {
		if err := end.SetDeadline(deadline); err != nil {
			return err
		}
	}
	result := make(chan error, 1)
	go func() {
		connection := tls.Server(near, server)
		err := connection.Handshake()
		if err == nil {
			// In TLS 1.3 a client learns only from the next record that its certificate was accepted.
			_, err = connection.Write([]byte("."))
		}
		near.Close()
		result <- err
	}()
	connection := tls.Client(far, client)
	err := connection.Handshake()
	if err == nil {
		_, err = connection.Read(make([]byte, 1))
	}
	far.Close()
	if served := <-result; err == nil {
		err = served
	}
	return err
}
